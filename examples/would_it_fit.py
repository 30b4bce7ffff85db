"""Would it fit? Plan a large language model's step for a device that is not there.

    python examples/would_it_fit.py [--target h200] [--layers 4] [--batch 8] ...

Nothing is run and no array is made: XLA compiles the step for the target, and its own
figure answers. GPU targets need `pip install "coop-jax[cuda]"`, TPU targets
`pip install "coop-jax[tpu]"`; neither needs the device.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
from models import transformer_problem

import coop_jax
from coop_jax.base.budget import format_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--target", default="h200", help=f"one of {', '.join(coop_jax.targets.names())}"
    )
    parser.add_argument("--budget", default="device", help="such as 60%% or 40GiB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--batch", type=int, default=8, help="sequences")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens")
    parser.add_argument("--dtype", default="float32", help="of activations")
    args = parser.parse_args()

    train_step = None

    def arguments() -> Any:
        nonlocal train_step
        problem = transformer_problem(
            num_layers=args.layers,
            width=args.width,
            num_heads=args.heads,
            vocab_size=args.vocabulary,
            batch_size=args.batch,
            sequence_length=args.sequence,
            dtype=args.dtype,
        )
        train_step = problem.train_step
        return problem.state, problem.batch, problem.key

    state, batch, key = jax.eval_shape(arguments)  # shapes; the weights are never made
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"{num_parameters / 1e9:.2f} billion parameters, batch {args.batch}")

    start = time.perf_counter()
    try:
        plan = coop_jax.fit(
            *(train_step, state, batch, key),
            target=args.target,
            budget=args.budget,
            donate_argnums=0,
        )
    except coop_jax.InfeasibleBudgetError as error:
        print(f"It does not fit; {format_bytes(error.smallest_bytes)} would do.\n{error}")
    else:
        print(plan)
        how = "as it is" if plan.is_unmodified else "with recomputation"
        print(f"It fits, {how}.")
    print(f"(asked in {time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
