"""Digits: a residual net with batch normalisation, on scanned handwriting.

    python examples/digits.py [--budget 60%] [--epochs 5] [--plot picture.png]

The pictures are scikit-learn's digits. Batch statistics are part of the state that a
step returns: a recomputation must neither update them twice nor see the new ones, and
the accuracy on pictures held out, which is computed from them, shows that it does not.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import side_by_side
import sklearn.datasets
import sklearn.model_selection
from models import convnet_problem

import coop_jax

IMAGE_SIZE = 16
BATCH_SIZE = 64
# Rounding alone moves a handful of the pictures held out; see `check_losses`.
ACCURACY_TOLERANCE = 0.02


def load_digits() -> list[np.ndarray]:
    """Images and labels to train with, and images and labels held out."""
    data = sklearn.datasets.load_digits()
    images = data.images[..., None].astype(np.float32) / 16
    # Twice the side, so that the net's two halvings leave something to look at.
    shape = len(images), IMAGE_SIZE, IMAGE_SIZE, 1
    images = np.asarray(jax.image.resize(images, shape, "linear"))
    train_images, test_images, train_labels, test_labels = (
        sklearn.model_selection.train_test_split(
            images,
            data.target.astype(np.int32),
            test_size=0.2,
            random_state=0,
            stratify=data.target,
        )
    )
    return [train_images, train_labels, test_images, test_labels]


def batches(images: np.ndarray, labels: np.ndarray, num_epochs: int, seed: int = 0):
    """Shuffled batches; the remainder of an epoch that fills none is left out."""
    rng = np.random.default_rng(seed)
    for _ in range(num_epochs):
        order = rng.permutation(len(images))
        for idx in range(len(images) // BATCH_SIZE):
            chosen = order[idx * BATCH_SIZE : (idx + 1) * BATCH_SIZE]
            yield images[chosen], labels[chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="60%", help="such as 60%% or 60MiB")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--plot", metavar="FILE", help="save a picture (matplotlib)")
    args = parser.parse_args()
    side_by_side.use_exact_products()

    train_images, train_labels, test_images, test_labels = load_digits()
    problem = convnet_problem(
        stage_sizes=(3, 3, 3),
        width=16,
        image_size=IMAGE_SIZE,
        num_channels=1,
        batch_size=BATCH_SIZE,
        optimizer=optax.adam(1e-3),
    )
    example = problem.state, problem.batch, problem.key

    as_written = jax.jit(problem.train_step, donate_argnums=0)
    planned = coop_jax.remat_train_step(
        problem.train_step, budget=args.budget, donate_argnums=0
    )

    start = time.perf_counter()
    plan = planned.plan(*example)
    print(f"{plan}\n  (planned in {time.perf_counter() - start:.0f} s)\n")

    compiled = as_written.lower(*example).compile()
    sizes = {
        "as written": side_by_side.step_bytes(compiled),
        "coop_jax": side_by_side.step_bytes(planned.lower(*example).compile()),
    }
    assert sizes["coop_jax"] <= plan.budget_bytes

    steps = {"as written": compiled, "coop_jax": planned}
    schedule = list(batches(train_images, train_labels, args.epochs))
    runs = side_by_side.train(problem, steps, schedule)
    before, after = runs["as written"], runs["coop_jax"]

    print("loss")
    side_by_side.print_losses(runs)
    side_by_side.check_losses(problem, steps, schedule, runs, num_first=20)
    predict = jax.jit(problem.predict)
    accuracies = []
    for name, run in runs.items():
        is_right = predict(run.state, test_images).argmax(-1) == test_labels
        accuracies.append(float(jnp.mean(is_right)))
        print(
            f"{name:>11}: {side_by_side.mebibytes(sizes[name])}, "
            f"median step {run.median_seconds:.3f} s, "
            f"accuracy on {len(test_labels)} held out {accuracies[-1]:.1%}"
        )
    print(
        f"     budget: {side_by_side.mebibytes(plan.budget_bytes)}, kept; step time "
        f"x{after.median_seconds / before.median_seconds:.2f}"
    )
    assert abs(accuracies[0] - accuracies[1]) <= ACCURACY_TOLERANCE
    if args.plot:
        side_by_side.plot(args.plot, "Residual net on digits", runs, sizes)


if __name__ == "__main__":
    main()
