"""Quickstart: train a language model in half of the memory, with the same losses.

    python examples/quickstart.py [--budget 50%] [--steps 50] [--plot picture.png]

A byte-level transformer learns the text of CPython's own help topics, which is on every
machine. It is trained twice in turns: with the step as written, and with the step that
`coop_jax.remat_train_step` makes of it. One line differs.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import time

import jax
import numpy as np
import side_by_side
from models import transformer_problem

import coop_jax

BATCH_SIZE = 8
SEQUENCE_LENGTH = 128


def text_batches(num_batches: int, seed: int = 0):
    """Random excerpts as `(tokens, next tokens)`; a token is a byte."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    tokens = np.frombuffer(text, np.uint8).astype(np.int32)
    rng = np.random.default_rng(seed)
    for _ in range(num_batches):
        starts = rng.integers(len(tokens) - SEQUENCE_LENGTH, size=(BATCH_SIZE, 1))
        excerpts = tokens[starts + np.arange(SEQUENCE_LENGTH + 1)]
        yield excerpts[:, :-1], excerpts[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="50%", help="such as 50%% or 120MiB")
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    parser.add_argument("--plot", metavar="FILE", help="save a picture (matplotlib)")
    args = parser.parse_args()

    side_by_side.use_exact_products()
    problem = transformer_problem(
        num_layers=4, batch_size=BATCH_SIZE, sequence_length=SEQUENCE_LENGTH
    )
    example = problem.state, problem.batch, problem.key

    # As written ...
    as_written = jax.jit(problem.train_step, donate_argnums=0)
    # ... and under a budget.
    planned = coop_jax.remat_train_step(
        problem.train_step, budget=args.budget, donate_argnums=0
    )

    start = time.perf_counter()
    plan = planned.plan(*example)
    print(f"{plan}\n  (planned in {time.perf_counter() - start:.0f} s)\n")

    # Ask XLA, not the plan.
    compiled = as_written.lower(*example).compile()
    sizes = {
        "as written": side_by_side.step_bytes(compiled),
        "coop_jax": side_by_side.step_bytes(planned.lower(*example).compile()),
    }
    assert sizes["coop_jax"] <= plan.budget_bytes

    steps = {"as written": compiled, "coop_jax": planned}
    batches = list(text_batches(args.steps))
    runs = side_by_side.train(problem, steps, batches)
    before, after = runs["as written"], runs["coop_jax"]

    print("loss")
    side_by_side.print_losses(runs)
    side_by_side.check_losses(problem, steps, batches, runs, num_first=20)
    for name, run in runs.items():
        print(
            f"{name:>11}: {side_by_side.mebibytes(sizes[name])}, "
            f"median step {run.median_seconds:.3f} s"
        )
    print(
        f"     budget: {side_by_side.mebibytes(plan.budget_bytes)}, kept; step time "
        f"x{after.median_seconds / before.median_seconds:.2f}"
    )
    if args.plot:
        side_by_side.plot(args.plot, "Transformer on CPython's help", runs, sizes)


if __name__ == "__main__":
    main()
