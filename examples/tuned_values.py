"""Tuned values: what changes at half and at twice of each.

    python examples/tuned_values.py [--on cpu] [--values ...] [--write]

Steps that chose none of the values (`tuned/networks.py`) are planned at the smallest
budget and at 30 % and 60 % of the way from there to the bytes of the step as written: with
the values as they are, and with one of them at half and at twice. Values near 1 that are
meant as a distance from it are changed by that distance. For an absent target, XLA's
figures are of a compiled step. `--on core` is for the constants of `xla_ext/core`
(`tuned/core.py`), and `--on list` writes the list of all values.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

# Absent targets are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import budget_table
import jax
from budget_table import markdown, progress
from tuned import core
from tuned.memory import Memory
from tuned.networks import STEPS, Step
from tuned.values import VALUES, Tuned, changed

from coop_jax import InfeasibleBudgetError
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import FittedStep, fit_smallest, fit_step, placed_otherwise
from coop_jax.search.placements import XLA_PLACES, Placing
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

HERE = ("cpu", "random", "graph", "arena")
PARTS = (0.3, 0.6)
FACTORS = (0.5, 2)
COLUMNS = (
    "value",
    "is",
    "set to",
    "other plans",
    "smallest, bytes",
    "modelled time",
    "refused",
    "compilations",
    "planning",
)
LIST_COLUMNS = ("value", "is", "decides", "chosen", "half and twice")
TIMED = " Step-time ratios are medians of interleaved runs."
RESULTS = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one step at one budget; `overhead` and `plan` are None where it is refused."""

    xla_bytes: int
    overhead: float | None
    num_compilations: int
    seconds: float
    plan: Any


class Case:
    """A step that is planned with one value or another."""

    def __init__(self, step: Step, on: str, memory: Memory) -> None:
        fn, arguments, options = step
        if on not in HERE:
            shapes = jax.eval_shape(lambda x: x, arguments)
            arguments = absent_devices.placed(shapes, absent_devices.named_device(on))
        self._memory = memory
        self._placing = Placing("arena") if on == "arena" else XLA_PLACES
        self._traced = TracedStep.trace(fn, options, arguments, {})
        self._as_written = compile_both(self._traced)
        self._budgets: list[int] = []
        smallest, *_ = self.figures()
        needed = self._as_written.total_bytes - smallest.xla_bytes
        self._budgets = [smallest.xla_bytes + int(part * needed) for part in PARTS]

    def figures(self) -> list[Figures]:
        """At the smallest budget, and at the two others."""
        return [self._at(budget) for budget in (None, *self._budgets)]

    def _at(self, budget_bytes: int | None) -> Figures:
        memory, lines = self._memory, []
        start, core_seconds, own = time.thread_time(), memory.seconds, memory.own_seconds
        plan = None
        try:
            fitted = self._fitted(budget_bytes, lines.append)
            xla_bytes, overhead, plan = self._of(fitted, is_smallest=budget_bytes is None)
        except InfeasibleBudgetError as error:
            xla_bytes, overhead = error.smallest_bytes, None
        outside = memory.own_seconds - own - (memory.seconds - core_seconds)
        seconds = time.thread_time() - start - outside
        count = sum(line.startswith("compilation") for line in lines)
        return Figures(xla_bytes, overhead, count, seconds, plan)

    def _fitted(self, budget_bytes: int | None, log: Any) -> FittedStep:
        step = self._traced, "search", log, self._as_written
        if budget_bytes is None:
            return fit_smallest(*step)
        traced, planner, log, as_written = step
        return fit_step(traced, budget_bytes, planner, log, as_written, self._placing)

    def _of(self, fitted: FittedStep, *, is_smallest: bool) -> tuple[int, float, Any]:
        plan, candidate = fitted.plan, fitted.candidate
        assert plan.measured_bytes is not None
        if candidate is None:
            return plan.measured_bytes, 1.0, plan.measured_bytes
        xla_bytes = plan.measured_bytes
        if is_smallest and self._placing is not XLA_PLACES:
            compiled, _ = placed_otherwise(self._traced, fitted, self._placing)
            xla_bytes = memory_figures(compiled).total_bytes
        overhead = candidate.schedule.statistics.compute_overhead
        return xla_bytes, overhead, (candidate.schedule.steps.tobytes(), xla_bytes)


def rows(tuned: Tuned, cases: Sequence[Case], usual: list[list[Figures]]) -> Iterator[list]:
    """At half and at twice of a value."""
    for factor in FACTORS:
        value = tuned.times(factor)
        if value == tuned.value:
            continue
        with changed(tuned, value):
            found = [case.figures() for case in cases]
        yield [
            f"`{tuned.qualified}`",
            _text(tuned.value),
            _text(value),
            *_cells(usual, found),
        ]


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(v) for v in value)
    if dataclasses.is_dataclass(value):
        return f"{value.most_copies:g}"
    return "none" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def _cells(usual: list[list[Figures]], found: list[list[Figures]]) -> list[str]:
    pairs = [
        (a, b)
        for before, after in zip(usual, found, strict=True)
        for a, b in zip(before, after, strict=True)
    ]
    smallest = [
        after[0].xla_bytes / before[0].xla_bytes
        for before, after in zip(usual, found, strict=True)
    ]
    times = [
        b.overhead / a.overhead
        for before, after in zip(usual, found, strict=True)
        for a, b in zip(before[1:], after[1:], strict=True)
        if a.overhead is not None and b.overhead is not None
    ]
    counts = [sum(f.num_compilations for f in side) for side in zip(*pairs, strict=True)]
    seconds = [sum(f.seconds for f in side) for side in zip(*pairs, strict=True)]
    refused = [sum(f.overhead is None for f in side) for side in zip(*pairs, strict=True)]
    return [
        f"{sum(a.plan != b.plan for a, b in pairs)} of {len(pairs)}",
        _spread(smallest),
        _spread(times),
        "" if refused == [0, 0] else f"{refused[0]} → {refused[1]}",
        f"{counts[0]} → {counts[1]}",
        f"{seconds[1] / seconds[0]:.2f} ×",
    ]


def _spread(ratios: list[float]) -> str:
    """The median change, in %, with the least and the greatest one."""
    if not ratios:
        return ""
    low, middle, high = (
        100 * (x - 1) for x in (min(ratios), statistics.median(ratios), max(ratios))
    )
    if max(abs(low), abs(high)) < 0.005:
        return "="
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"


def listed() -> list[list[str]]:
    """All values of the package, and all constants of the core."""
    of_package = [
        [f"`{v.qualified}`", _text(v.value), v.purpose, v.chosen, v.effect or v.seen_on]
        for v in VALUES
    ]
    of_core = [
        [f"`{c.file}` `{c.name}`", c.text(), c.purpose, c.chosen, c.effect or "core"]
        for c in core.CONSTANTS
    ]
    return of_package + of_core


def page(on: str, all_rows: list[list[str]], seconds: float) -> str:
    """The results page."""
    ran = "" if on in HERE else f" An absent {on}: compiled, not run."
    head = budget_table.header().replace(
        TIMED,
        f"{ran} Nothing was timed but planning; the run took {seconds / 60:.0f} minutes.",
    )
    return f"{head}\n\n{markdown(all_rows, COLUMNS)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="cpu", choices=[*STEPS, "core", "list"])
    parser.add_argument("--values", nargs="+", help="names, all without")
    parser.add_argument("--write", action="store_true", help="into results/")
    args = parser.parse_args()
    path = RESULTS / f"tuned_values_{args.on.replace(' ', '_')}.md"
    if args.on == "list":
        head = budget_table.header().replace(TIMED, " Nothing was timed.")
        text = f"{head}\n\n{markdown(listed(), LIST_COLUMNS)}"
        if args.write:
            path.write_text(f"{text}\n")
        print(text)
        return
    if args.on == "core":
        for text in core.pages(args.values):
            if args.write:
                path.write_text(f"{text}\n")
        print(text)
        return
    start, memory, all_rows = time.perf_counter(), Memory(), []
    with memory.used():
        cases = [Case(make(), args.on, memory) for make in STEPS[args.on].values()]
        usual = [case.figures() for case in cases]
        progress(f"as they are: {time.perf_counter() - start:.0f} s")
        for tuned in VALUES:
            if tuned.seen_on != args.on or (args.values and tuned.name not in args.values):
                continue
            for row in rows(tuned, cases, usual):
                all_rows.append(row)
                progress(f"{time.perf_counter() - start:.0f} s: {' | '.join(row)}")
            text = page(args.on, all_rows, time.perf_counter() - start)
            if args.write:  # After every value: all of them take minutes.
                path.write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
