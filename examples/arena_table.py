"""Arena table: what `placement="arena"` costs, at the very plan of `placement="xla"`.

    python examples/arena_table.py [--target cpu] [--networks ...] [--write]

A step is planned under 60 % of what it needs as written; the same schedule is compiled
for both placements. On CPU the two take turns with the step as written for twenty steps:
the ratio of their medians says what the arena's copies cost, and their losses have to
agree. For a target that is not there, XLA's figure is all there is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Callable
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import budget_table
import jax
import side_by_side
from budget_table import markdown, progress
from compare.networks import NETWORKS
from models import (
    TrainingProblem,
    convnet_problem,
    mixer_problem,
    transformer_problem,
)
from paper.networks.training_step import DONATED
from side_by_side import mebibytes

from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep
from coop_jax.pipeline import fit_step, placed_otherwise
from coop_jax.search.placements import Placing
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

# As in `budget_table.py`.
PROBLEMS: dict[str, Callable[[str], TrainingProblem]] = {
    "transformer-6": lambda dtype: transformer_problem(num_layers=6, dtype=dtype),
    "transformer-12": lambda dtype: transformer_problem(
        num_layers=12, width=128, num_heads=4, dtype=dtype
    ),
    "convnet": lambda dtype: convnet_problem(stage_sizes=(3, 3, 3), width=16, dtype=dtype),
    "mixer": lambda dtype: mixer_problem(dtype=dtype),
}
RESULTS = pathlib.Path(__file__).parent / "results"
COLUMNS = (
    "network",
    "budget",
    'measured, `"xla"`',
    'measured, `"arena"`',
    "ratio",
    "arena",
    "values in it",
    "copied a step",
    "step-time ratio",
    "losses differ by",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--steps", type=int, default=20, help="of training, each")
    parser.add_argument("--dtype", default="float32", help="of activations")
    parser.add_argument("--write", action="store_true", help="into results/")
    args = parser.parse_args()
    if args.target == "cpu":
        names = args.networks or list(PROBLEMS)
        rows = [row_here(name, args) for name in names]
    else:
        names = args.networks or ["gpt2", "resnet50"]
        rows = [row_of_target(name, args.target, args.budget) for name in names]
    text = f"{budget_table.header()}\n\n{markdown(rows, COLUMNS)}"
    if args.write:
        name = args.target.replace(" ", "_")
        name += "" if args.dtype == "float32" else f"_{args.dtype}"
        (RESULTS / f"arena_table_{name}.md").write_text(f"{text}\n")
    print(text)


def row_here(name: str, args: argparse.Namespace) -> list[str]:
    """Of a network that runs on this machine, with times and losses."""
    problem = PROBLEMS[name](args.dtype)
    example = problem.state, problem.batch, problem.key
    fitted, compiled, cells = both(problem.train_step, example, args.budget)
    as_written = jax.jit(problem.train_step, donate_argnums=0).lower(*example).compile()
    steps = {"xla": fitted.compiled, "arena": compiled, "as written": as_written}
    runs = side_by_side.train(problem, steps, [problem.batch] * args.steps)
    ratio = runs["arena"].median_seconds / runs["xla"].median_seconds
    by_xla = side_by_side.largest_difference(runs["xla"], runs["arena"])
    from_written = side_by_side.largest_difference(runs["as written"], runs["arena"])
    # XLA fuses them differently; training enlarges that from step to step.
    first = side_by_side.largest_difference(runs["as written"], runs["arena"], 1)
    assert first <= (1e-5 if args.dtype == "float32" else 1e-2)
    differences = f"{by_xla:.0e}, {from_written:.0e}"
    name = name if args.dtype == "float32" else f"{name}, {args.dtype}"
    return [name, args.budget, *cells, f"{ratio:.3f}", differences]


def row_of_target(name: str, target: str, budget: str) -> list[str]:
    """Of a network that is compiled for a device that is not there."""
    step = NETWORKS[name].step(target)
    arguments = absent_devices.placed(step.args, absent_devices.named_device(target))
    _, _, cells = both(step.step, arguments, budget, donate_argnums=DONATED)
    return [f"{name}, {target}", budget, *cells, "", ""]


def both(
    step: Callable, arguments: tuple, budget: str, donate_argnums: Any = 0
) -> tuple[FittedStep, Any, list[str]]:
    """The step under a budget, the same schedule with an arena, and their cells."""
    traced = TracedStep.trace(
        step,
        {"donate_argnums": donate_argnums},
        arguments,
        {},
    )
    fitted = fit_step(traced, budget, "search", progress)
    compiled, arena = placed_otherwise(traced, fitted, Placing("arena"))
    assert arena is not None
    assert arena.stays, "nothing is worth an arena"
    before = fitted.plan.measured_bytes
    assert before is not None
    after = memory_figures(compiled).total_bytes
    cells = [
        mebibytes(before),
        mebibytes(after),
        f"{after / before:.3f}",
        mebibytes(arena.arena_bytes),
        str(len(arena.stays)),
        mebibytes(arena.copied_bytes),
    ]
    progress(" | ".join(cells))
    return fitted, compiled, cells


if __name__ == "__main__":
    main()
