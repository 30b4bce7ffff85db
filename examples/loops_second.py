"""Loops second: twelve steps with loops that chose nothing, under budgets on a CPU.

    PYTHONPATH=examples python examples/loops_second.py [--steps ...] [--write]

Each step of `compare/loops_second` is planned for budgets of 90 to 40 % of what it needs
as written, for the bytes of the policies that wrap every body in `jax.checkpoint`, and
for the smallest budget. Every row is XLA's bytes, the prediction, the seconds of the
instructions of the executable relative to the step as written, whether the results of
three steps are equal, and the time of planning. With `--write` rows are added to
`results/loops_second_cpu.csv`, those of the same step replaced, and the tables written.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from compare.loops_second.steps import STEPS

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.compile.traced_step import TracedStep
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

RESULTS = pathlib.Path(__file__).parent / "results"
TABLE = RESULTS / "loops_second_cpu.csv"
POLICIES = {
    "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
    "dots_saveable": jax.checkpoint_policies.dots_saveable,
}
SHARES = (90, 75, 60, 50, 40)
CALLS = 3


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
    """The largest distance, relative to the largest entry of the array."""

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) + 1e-30)) if a.size else 0.0

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
        start = time.perf_counter()
        compiled = fitted.lower(*self.args).compile()
        row.compile_seconds = round(time.perf_counter() - start, 2)
        row.seconds_ratio = self.price(compiled) / self.seconds
        ours = after(fitted, self.args)
        row.equal = str(all(map(np.array_equal, ours, self.expected)))
        row.difference = difference(ours, self.expected)
        row.note = "; ".join(map(str, plan.loops)) or "no loops planned"
        return row


def rows_of(name: str) -> list[Row]:
    step = Step(name)
    rows = [step.first, *map(step.under, POLICIES)]
    for policy in rows[1:]:
        assert isinstance(policy.total_bytes, int)
        if policy.total_bytes < step.total_bytes:
            rows.append(step.planned(f"at {policy.version}", policy.total_bytes))
    rows += [step.planned(f"{s}%", step.total_bytes * s // 100) for s in SHARES]
    smallest = step.smallest_budget()
    if smallest is not None:
        rows.append(step.planned("smallest", smallest))
    return rows


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name in options.steps:
        rows = rows_of(name)
        for row in rows:
            print(*dataclasses.astuple(row), sep=" | ", flush=True)
        if options.write:
            write(rows)


if __name__ == "__main__":
    main()
