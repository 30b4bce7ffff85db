"""Budget sweep: twenty budgets a network; does XLA's figure follow every one of them?

    python examples/budget_sweep.py [--networks ...] [--points 20] [--write]

From 95 % of what the step needs as written down to the smallest budget that works, in
equal steps. The step is traced once and its two unplanned compilations are shared; then
every budget is planned, compiled and measured by itself. Asserted: no step is over its
budget. Said: how often the measured bytes rise when the budget falls.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable

import budget_table
from budget_table import NETWORKS, markdown, progress
from models import TrainingProblem
from side_by_side import mebibytes

import coop_jax
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import fit_step

RESULTS = pathlib.Path(__file__).parent / "results" / "budget_sweep_cpu.md"
LARGEST = 0.95
COLUMNS = (
    "network",
    "budget",
    "predicted",
    "measured",
    "modelled time",
    "compilations",
    "not monotone",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    three = ["transformer-6", "mixer", "convnet"]
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=three)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    args = parser.parse_args()
    rows: list[list[str]] = []
    for name in args.networks:
        rows += [[name, *cells] for cells in sweep(NETWORKS[name], args.points)]
        rises = sum(bool(row[-1]) for row in rows)
        text = (
            f"{budget_table.header()}\n\n{markdown(rows, COLUMNS)}\n\n{len(rows)} budgets, "
            f"none exceeded; the measured bytes rise {rises} times as the budget falls."
        )
        if args.write:
            RESULTS.write_text(f"{text}\n")
    print(text)


def sweep(make_problem: Callable[[], TrainingProblem], points: int) -> list[list[str]]:
    """The rows of one network, largest budget first."""
    problem = make_problem()
    traced = TracedStep.trace(
        problem.train_step,
        {"donate_argnums": 0},
        (problem.state, problem.batch, problem.key),
        {},
    )
    unmodified = compile_both(traced)

    def fit(budget: int) -> coop_jax.Plan:
        return fit_step(traced, budget, "search", progress, unmodified).plan

    try:
        fit(1)
    except coop_jax.InfeasibleBudgetError as error:
        smallest = error.smallest_bytes
    else:
        raise AssertionError("a step in one byte")
    need = unmodified[1]
    largest = int(need * LARGEST)
    rows = []
    above = need
    for k in range(points):
        budget = largest - (largest - smallest) * k // (points - 1)
        start = time.perf_counter()
        plan = fit(budget)
        seconds = time.perf_counter() - start
        measured = plan.measured_bytes
        assert measured is not None
        assert measured <= budget, f"{measured} bytes where {budget} were allowed"
        rose = "" if measured <= above else f"rises from {mebibytes(above)}"
        above = measured
        rows.append(
            [
                f"{budget / need:.1%} = {mebibytes(budget)}",
                mebibytes(plan.predicted_bytes),
                f"{mebibytes(measured)} ({measured / need:.1%})",
                f"{plan.compute_overhead:.3f}",
                str(plan.num_compilations),
                rose,
            ]
        )
        progress(" | ".join(rows[-1]) + f" | {seconds:.0f} s")
    return rows


if __name__ == "__main__":
    main()
