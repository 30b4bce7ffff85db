"""Loops second: twelve steps with loops that chose nothing, under budgets on a CPU.

    python examples/loops_second.py [--steps ...] [--write]

Each step of `compare/loops_second` is planned for budgets of 90 to 40 % of what it needs
as written, for the bytes of the policies that wrap every body in `jax.checkpoint`, and
for the smallest budget. Every row is XLA's bytes, the prediction, the seconds of the
instructions of the executable relative to the step as written, whether the results of
three steps are equal, and the time of planning. With `--write` rows are added to
`results/second_loops_cpu.csv`, those of the same step replaced, and the tables written.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import pathlib
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from budget_table import markdown
from compare.loops_second.steps import STEPS
from loops_table import described

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.compile.traced_step import TracedStep
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

RESULTS = pathlib.Path(__file__).parent / "results"
TABLE = RESULTS / "second_loops_cpu.csv"
POLICIES = {
    "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
}
SHARES = (90, 75, 60, 50, 40)
CALLS = 3
COLUMNS = (
    "step",
    "version",
    "budget, MiB",
    "XLA's bytes, MiB",
    "predicted",
    "executable ×",
    "results after 3 steps",
    "planned in, s",
    "iterations",
)


@dataclasses.dataclass
class Row:
    """A version of a step; bytes are XLA's, seconds relative to the step as written."""

    step: str
    version: str
    budget: int | str = ""
    total_bytes: int | str = ""
    predicted_bytes: int | str = ""
    seconds_ratio: float | str = ""
    equal: str = ""
    difference: float | str = ""
    planning_seconds: float | str = ""
    compile_seconds: float | str = ""
    note: str = ""

    def compare_results(self, ours: list[np.ndarray], expected: list[np.ndarray]) -> None:
        self.equal = str(all(map(np.array_equal, ours, expected)))
        self.difference = difference(ours, expected)


def compiled_as_written(step: Callable, args: tuple) -> tuple[Any, float]:
    traced = TracedStep.trace(step, {"donate_argnums": 0}, args, {})
    start = time.perf_counter()
    compiled = traced.compile_lowered(traced.lower_as_written())
    return compiled, time.perf_counter() - start


def after(compiled: Callable, args: tuple, calls: int = CALLS) -> list[np.ndarray]:
    """State and results after a number of steps, on copies of the arguments."""
    state, *batch = jax.tree.map(lambda x: x.copy(), args)
    value = None
    for _ in range(calls):
        state, value = compiled(state, *batch)
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((state, value))]


def difference(ours: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest distance of an array, relative to its norm."""

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-30))

    return max(map(distance, ours, expected))


class Step:
    """One of the steps: its rows."""

    def __init__(self, name: str):
        self.name = name
        self.step, self.args = STEPS[name](None)
        self.compiled, took = compiled_as_written(self.step, self.args)
        self.total_bytes = memory_figures(self.compiled).total_bytes
        self.seconds = self.price(self.compiled)
        self.expected = after(self.compiled, self.args)
        self.first = Row(name, "as written", "", self.total_bytes, "", 1.0)
        self.first.compile_seconds = round(took, 2)

    def price(self, compiled: Any) -> float:
        return executable_seconds(compiled, named("cpu")) or float("nan")

    def under(self, name: str) -> Row:
        """The step under a policy."""
        step, args = STEPS[self.name](POLICIES[name])
        compiled, took = compiled_as_written(step, args)
        row = Row(self.name, name, "", memory_figures(compiled).total_bytes)
        row.seconds_ratio = self.price(compiled) / self.seconds
        row.compile_seconds = round(took, 2)
        row.compare_results(after(compiled, args), self.expected)
        return row

    def smallest_budget(self) -> int | None:
        fitted = coop_jax.remat_train_step(self.step, budget=1, donate_argnums=0)
        try:
            fitted.plan(*self.args)
        except InfeasibleBudgetError as error:
            return error.smallest_bytes
        return None

    def planned(self, version: str, budget: int) -> Row:
        """The step under a budget."""
        row = Row(self.name, version, budget)
        fitted = coop_jax.remat_train_step(self.step, budget=budget, donate_argnums=0)
        start = time.perf_counter()
        try:
            plan = fitted.plan(*self.args)
        except InfeasibleBudgetError as error:
            row.note = f"does not fit; works: {error.smallest_bytes}"
            row.planning_seconds = round(time.perf_counter() - start, 1)
            return row
        row.planning_seconds = round(time.perf_counter() - start, 1)
        row.total_bytes = plan.measured_bytes or -1
        row.predicted_bytes = plan.predicted_bytes
        compiled = fitted.lower(*self.args).compile()
        row.seconds_ratio = self.price(compiled) / self.seconds
        row.compare_results(after(fitted, self.args), self.expected)
        row.note = "; ".join(map(described, plan.loops)) or "no loops planned"
        return row


def rows_of(name: str) -> Iterator[Row]:
    step = Step(name)
    yield step.first
    policies = list(map(step.under, POLICIES))
    yield from policies
    for policy in policies:
        assert isinstance(policy.total_bytes, int)
        if policy.total_bytes < step.total_bytes:
            yield step.planned(f"at {policy.version}", policy.total_bytes)
    for share in SHARES:
        yield step.planned(f"{share}%", step.total_bytes * share // 100)
    smallest = step.smallest_budget()
    if smallest is not None:
        yield step.planned("smallest", smallest)


def kept_rows() -> list[dict[str, str]]:
    if not TABLE.exists():
        return []
    with TABLE.open() as lines:
        return list(csv.DictReader(lines))


def write(rows: list[Row]) -> None:
    """Adds rows of one step to the table, in place of its former ones."""
    names = [field.name for field in dataclasses.fields(Row)]
    former = [row for row in kept_rows() if row["step"] != rows[0].step]
    made = [{k: str(v) for k, v in dataclasses.asdict(row).items()} for row in rows]
    order = list(STEPS)
    with TABLE.open("w", newline="") as lines:
        table = csv.DictWriter(lines, names, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(former + made, key=lambda r: order.index(r["step"])))


def mib(text: str) -> str:
    return f"{int(text) / 2**20:.1f}" if text else ""


def cells(row: dict[str, str]) -> list[str]:
    """A row of the table that people read."""
    predicted = ""
    if row["predicted_bytes"]:
        error = int(row["predicted_bytes"]) / int(row["total_bytes"]) - 1
        predicted = f"{100 * error:+.1f}%"
    ratio = f"{float(row['seconds_ratio']):.3f}" if row["seconds_ratio"] else ""
    off = f"{float(row['difference']):.0e}" if row["difference"] else ""
    if row["equal"] == "True":
        off = "equal"
    note = row["note"]
    if note.startswith("does not fit"):
        note = f"does not fit; the error names {mib(note.split()[-1])} MiB"
    plan = row["planning_seconds"]
    budget = mib(row["budget"])
    sizes = [mib(row["total_bytes"]), predicted]
    return [row["step"], row["version"], budget, *sizes, ratio, off, plan, note]


def summary(rows: list[dict[str, str]]) -> str:
    """How many rows keep what is asked of them."""
    planned = [row for row in rows if row["budget"] and row["total_bytes"]]
    refused = [row for row in rows if row["budget"] and not row["total_bytes"]]
    within = sum(int(row["total_bytes"]) <= int(row["budget"]) for row in planned)
    errors = [int(r["predicted_bytes"]) / int(r["total_bytes"]) - 1 for r in planned]
    close = sum(abs(error) <= 0.1 for error in errors)
    equal = sum(row["equal"] == "True" for row in planned)
    found = {(row["step"], row["version"]): row for row in rows}
    ours = [row for row in rows if row["version"].startswith("at ")]
    slower, missed = [], []
    for row in ours:
        policy = found[row["step"], row["version"].removeprefix("at ")]
        name = f"{row['step']} {row['version']}"
        if not row["total_bytes"]:
            missed.append(name)
        elif float(row["seconds_ratio"]) > 1.02 * float(policy["seconds_ratio"]):
            slower.append(name)
    return (
        f"{len(planned)} plans, {within} within their budgets, {close} predicted within "
        f"10% of XLA's bytes, worst {max(errors, key=abs):+.1%}; {equal} with results "
        f"equal to those of the step as written after {CALLS} steps. {len(refused)} "
        f"budgets were refused. Of {len(ours)} policies that need less than the step as "
        f"written, no plan fits into the bytes of {len(missed)} "
        f"({', '.join(missed) or 'none'}); in those of {len(slower)} the executable's "
        f"price is more than 2% higher ({', '.join(slower) or 'none'})."
    )


def write_table() -> None:
    """Writes the table of the rows on record for people."""
    head = (
        "`python examples/loops_second.py --write`, Python "
        f"{platform.python_version()}, jax {jax.__version__}, two cores of a "
        f"{platform.machine()} server that other work shared."
    )
    rows = kept_rows()
    table = markdown(list(map(cells, rows)), COLUMNS)
    TABLE.with_suffix(".md").write_text(f"{head}\n\n{table}\n\n{summary(rows)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", nargs="*", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--table", action="store_true", help="of the rows on record")
    options = parser.parse_args()
    for name in options.steps:
        rows = []
        for row in rows_of(name):
            print(*dataclasses.astuple(row), sep=" | ", flush=True)
            rows.append(row)
        if options.write:
            write(rows)
            write_table()
    if options.table:
        write_table()


if __name__ == "__main__":
    main()
