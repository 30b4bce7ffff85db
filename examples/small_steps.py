"""Small steps: thirty-one steps of many kinds that chose nothing, under budgets on a CPU.

    python examples/small_steps.py [--steps ...] [--budgets 80 60 45] [--write]

Each step of `compare/small` is planned for parts of what it needs as written: XLA's bytes,
the prediction, compilations, the time of planning beside that of compiling the step as
written, and how far the results of one call are from those as written. Asserted: no step is
over its budget. Counted: budgets that are refused though a plan for a smaller one keeps
them. With `--write` the rows of the same steps in `results/small_steps_cpu.csv` are
replaced and the table is written.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from budget_table import header, markdown, progress
from compare.small.steps import STEPS

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.xla.memory_figures import memory_figures

RESULTS = pathlib.Path(__file__).parent / "results"
ROWS, TABLE = RESULTS / "small_steps_cpu.csv", RESULTS / "small_steps_cpu.md"
COLUMNS = (
    "step",
    "as written, MiB",
    "budget",
    "XLA's bytes",
    "predicted",
    "executable ×",
    "compilations",
    "planned in, × `jax.jit`",
    "results differ by",
)


@dataclasses.dataclass
class Row:
    """A step under a budget; bytes are XLA's. Of a refused budget `total_bytes` is 0."""

    step: str
    unmodified_bytes: int
    percent: int
    total_bytes: int = 0
    predicted_bytes: int = 0
    smallest_bytes: int = 0
    overhead: float = 0.0
    num_compilations: int = 0
    planning_ratio: float = 0.0
    difference: float = 0.0


def rows_of(name: str, percents: list[int]) -> Iterator[Row]:
    made = STEPS[name]()
    start = time.perf_counter()
    compiled = jax.jit(made.fn, donate_argnums=0).lower(*made.args).compile()
    compile_seconds = time.perf_counter() - start
    unmodified_bytes = memory_figures(compiled).total_bytes
    for percent in percents:
        row = Row(name, unmodified_bytes, percent)
        plan_into(row, compile_seconds)
        yield row


def plan_into(row: Row, compile_seconds: float) -> None:
    """Plans the step, made anew, as in a process of its own."""
    made = STEPS[row.step]()
    jax.clear_caches()
    step = coop_jax.remat_train_step(made.fn, budget=f"{row.percent}%", donate_argnums=0)
    start = time.perf_counter()
    try:
        plan = step.plan(*made.args)
    except InfeasibleBudgetError as error:
        row.planning_ratio = (time.perf_counter() - start) / compile_seconds
        row.smallest_bytes = error.smallest_bytes
        return
    row.planning_ratio = (time.perf_counter() - start) / compile_seconds
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= plan.budget_bytes, "no step is over its budget"
    row.total_bytes, row.predicted_bytes = plan.measured_bytes, plan.predicted_bytes
    assert plan.executable_overhead is not None, "a CPU publishes instructions"
    row.overhead, row.num_compilations = plan.executable_overhead, plan.num_compilations
    row.difference = step.check(*made.args).largest_relative


def cells(row: Row) -> list[str]:
    def percent(num_bytes: int) -> str:
        return f"{100 * num_bytes / row.unmodified_bytes:.1f}%"

    first = [row.step, f"{row.unmodified_bytes / 2**20:.1f}", f"{row.percent}%"]
    ratio = f"{row.planning_ratio:.1f}"
    if not row.total_bytes:
        refused = f"refused; {percent(row.smallest_bytes)} works"
        return [*first, refused, "", "", "", ratio, ""]
    error = row.predicted_bytes / row.total_bytes - 1
    return [
        *first,
        percent(row.total_bytes),
        f"{100 * error:+.1f}%",
        f"{row.overhead:.3f}",
        str(row.num_compilations),
        ratio,
        "0" if row.difference == 0 else f"{row.difference:.0e}",
    ]


def summary(rows: list[Row]) -> str:
    planned = [row for row in rows if row.total_bytes]
    errors = [abs(row.predicted_bytes / row.total_bytes - 1) for row in planned]
    ratios = [row.planning_ratio for row in rows]
    counts = [row.num_compilations for row in planned]
    within = [
        row
        for row in rows
        if not row.total_bytes
        for other in planned
        if other.step == row.step
        and 100 * other.total_bytes <= row.percent * row.unmodified_bytes
    ]
    return (
        f"{len(planned)} of {len(rows)} budgets are kept, the others refused; "
        f"{len(within)} are refused though a plan for another budget keeps them. "
        f"Predictions are off by {100 * statistics.median(errors):.1f} % in the median and "
        f"at most {100 * max(errors):.0f} %, {sum(e > 0.1 for e in errors)} by more than a "
        f"tenth. Compilations: {statistics.median(counts):.0f} "
        f"in the median, at most {max(counts)}, those of the "
        f"step as written and of its tagged program among them. Planning takes "
        f"{statistics.median(ratios):.1f} times as long as `jax.jit` in the median, at "
        f"most {max(ratios):.0f} times."
    )


def kept_rows() -> list[Row]:
    if not ROWS.exists():
        return []
    types = {field.name: type(field.default) for field in dataclasses.fields(Row)}
    types |= {"step": str, "unmodified_bytes": int, "percent": int}
    with ROWS.open() as lines:
        return [
            Row(**{name: types[name](text) for name, text in row.items()})
            for row in csv.DictReader(lines)
        ]


def write(rows: list[Row], names: list[str]) -> None:
    order = list(STEPS)
    rows += [row for row in kept_rows() if row.step not in names]
    rows.sort(key=lambda row: (order.index(row.step), -row.percent))
    with ROWS.open("w", newline="") as lines:
        fields = [field.name for field in dataclasses.fields(Row)]
        table = csv.DictWriter(lines, fields, lineterminator="\n")
        table.writeheader()
        table.writerows(map(dataclasses.asdict, rows))
    text = markdown([cells(row) for row in rows], COLUMNS)
    # No step is timed here.
    head = header().replace(
        "Step-time ratios are medians of interleaved runs.",
        "Planning and compiling are timed once each.",
    )
    TABLE.write_text(f"{head}\n\n{text}\n\n{summary(rows)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--budgets", nargs="+", type=int, default=[80, 60, 45])
    parser.add_argument("--write", action="store_true", help=f"to {TABLE.name}")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.steps:
        for row in rows_of(name, arguments.budgets):
            progress("  ".join(cells(row)))
            rows.append(row)
        if arguments.write:
            write(rows.copy(), arguments.steps)
    print(summary(rows))


if __name__ == "__main__":
    main()
