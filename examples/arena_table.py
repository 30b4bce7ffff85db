"""Arena table: what `placement="arena"` costs, at the very plan of `placement="xla"`.

    python examples/arena_table.py [--target cpu] [--networks ...] [--write]

A step is planned under 60 % of what it needs as written; the same schedule is compiled
for both placements. On CPU the two take turns, and the ratio of their medians says what
the arena's copies cost; for a target that is not there, XLA's figure is all there is.
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
import side_by_side
from budget_table import markdown, progress
from compare.networks import NETWORKS
from models import TrainingProblem
from paper.networks.training_step import DONATED
from side_by_side import mebibytes

from coop_jax import topology
from coop_jax.measure import memory_figures
from coop_jax.pipeline import (
    FittedStep,
    Placing,
    TracedStep,
    fit_step,
    placed_otherwise,
)

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
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--repeats", type=int, default=9, help="timed steps each")
    parser.add_argument("--write", action="store_true", help="into results/")
    args = parser.parse_args()
    if args.target == "cpu":
        names = args.networks or ["transformer-6", "transformer-12", "convnet", "mixer"]
        rows = [row_here(name, args.budget, args.repeats) for name in names]
    else:
        names = args.networks or ["gpt2", "resnet50"]
        rows = [row_of_target(name, args.target, args.budget) for name in names]
    text = f"{budget_table.header()}\n\n{markdown(rows, COLUMNS)}"
    if args.write:
        name = args.target.replace(" ", "_")
        (RESULTS / f"arena_table_{name}.md").write_text(f"{text}\n")
    print(text)


def row_here(name: str, budget: str, repeats: int) -> list[str]:
    """Of a network that runs on this machine, with the ratio of step times."""
    problem = budget_table.NETWORKS[name]()
    fitted, compiled, cells = both(
        problem.train_step, (problem.state, problem.batch, problem.key), budget
    )
    steps = {"xla": fitted.compiled, "arena": compiled}
    return [name, budget, *cells, time_ratio(problem, steps, repeats)]


def row_of_target(name: str, target: str, budget: str) -> list[str]:
    """Of a network that is compiled for a device that is not there."""
    step = NETWORKS[name].step(target)
    arguments = topology.placed(step.args, topology.named_device(target))
    _, _, cells = both(step.step, arguments, budget, donate_argnums=DONATED)
    return [name, budget, *cells, ""]


def both(
    step: Callable, arguments: tuple, budget: str, donate_argnums: Any = 0
) -> tuple[FittedStep, Any, list[str]]:
    """The step under a budget, the same schedule with an arena, and their cells."""
    traced = TracedStep.trace(
        step,
        {"donate_argnums": donate_argnums},
        arguments,
        {},
        lambda args, kwargs: (args, kwargs),
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


def time_ratio(problem: TrainingProblem, steps: dict[str, Any], repeats: int) -> str:
    runs = side_by_side.train(problem, steps, [problem.batch] * (repeats + 1))
    assert (
        runs["xla"].losses == runs["arena"].losses
        or side_by_side.largest_difference(runs["xla"], runs["arena"], 1) < 1e-5
    )
    return f"{runs['arena'].median_seconds / runs['xla'].median_seconds:.3f}"


if __name__ == "__main__":
    main()
