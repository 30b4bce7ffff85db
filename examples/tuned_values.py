"""Tuned values: what changes at half and at twice of each.

    python examples/tuned_values.py [--on cpu] [--values ...] [--steps ...] [--write]

Steps that chose none of the values (`tuned/networks.py`) are planned at the smallest
budget and at 30 % and 60 % of the way from there to the bytes of the step as written: with
the values as they are, and with one of them at half and at twice. Values near 1 that are
meant as a distance from it are changed by that distance. For an absent target, XLA's
figures are of a compiled step. `--on core` is for the constants of `xla_ext/core`
(`tuned/core.py`), and `--on list` writes the list of all values. Where all steps take too
long, `--steps` and `--parts` are fewer of them and of the budgets, and `--add` keeps the
rows of other values that are on the page.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

# Absent targets are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import budget_table
import jax
from budget_table import markdown, progress
from tuned import core
from tuned.cells import Figures, cells, text_of
from tuned.memory import Memory
from tuned.networks import STEPS, Step
from tuned.results import Results
from tuned.values import VALUES, Tuned, changed

from coop_jax import InfeasibleBudgetError
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep
from coop_jax.pipeline import fit_smallest, fit_step, placed_otherwise
from coop_jax.search.placements import XLA_PLACES, Placing
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

HERE = ("cpu", "loops", "random", "graph", "arena")
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


class Case:
    """A step that is planned with one value or another.

    Arguments:
        parts: the budgets besides the smallest one, as parts of the way from there to the
            bytes of the step as written.
    """

    def __init__(
        self, step: Step, on: str, memory: Memory, parts: Sequence[float] = PARTS
    ) -> None:
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
        self._budgets = [smallest.xla_bytes + int(part * needed) for part in parts]

    def figures(self) -> list[Figures]:
        """At the smallest budget, and at the others."""
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
        xla_bytes, overhead = plan.measured_bytes, plan.compute_overhead
        if candidate is None:
            return xla_bytes, overhead, (plan.loops, xla_bytes)
        if is_smallest and self._placing is not XLA_PLACES:
            compiled, _ = placed_otherwise(self._traced, fitted, self._placing)
            xla_bytes = memory_figures(compiled).total_bytes
        chosen = candidate.schedule.steps.tobytes(), plan.loops, xla_bytes
        return xla_bytes, overhead, chosen


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
            text_of(tuned.value),
            text_of(value),
            *cells(usual, found),
        ]


def listed() -> list[list[str]]:
    """All values of the package, and all constants of the core."""
    of_package = [
        [f"`{v.qualified}`", text_of(v.value), v.purpose, v.chosen, v.effect or v.seen_on]
        for v in VALUES
    ]
    of_core = [
        [f"`{c.file}` `{c.name}`", c.text(), c.purpose, c.chosen, c.effect or "core"]
        for c in core.CONSTANTS
    ]
    return of_package + of_core


def head(on: str, seconds: float) -> str:
    """The command, and what it ran on."""
    ran = "" if on in HERE else f" An absent {on}: compiled, not run."
    took = f" Nothing was timed but planning; the run took {seconds / 60:.0f} minutes."
    return budget_table.header().replace(TIMED, ran + took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default="cpu", choices=[*STEPS, "core", "list"])
    parser.add_argument("--values", nargs="+", help="names, all without")
    parser.add_argument("--steps", nargs="+", help="names of `tuned.networks`, all without")
    parser.add_argument("--parts", nargs="+", type=float, default=PARTS, help="budgets")
    parser.add_argument("--write", action="store_true", help="into results/")
    parser.add_argument("--add", action="store_true", help="to the rows in results/")
    args = parser.parse_args()
    path = RESULTS / f"tuned_values_{args.on.replace(' ', '_')}.md"
    before = path.read_text() if args.add else ""
    text = ""
    for text in _pages(args, before):
        if args.write or args.add:  # After every value: all of them take minutes.
            path.write_text(f"{text}\n")
    print(text)


def _pages(args: argparse.Namespace, before: str) -> Iterator[str]:
    """The results page, again after every value."""
    if args.on == "list":
        top = budget_table.header().replace(TIMED, " Nothing was timed.")
        return iter([f"{top}\n\n{markdown(listed(), LIST_COLUMNS)}"])
    if args.on == "core":
        return core.pages(before, args.values)
    return _measured(args, before)


def current_values(on: str) -> dict[str, str]:
    """The values that are seen on some steps, as they are."""
    return {f"`{v.qualified}`": text_of(v.value) for v in VALUES if v.seen_on == on}


def _measured(args: argparse.Namespace, before: str) -> Iterator[str]:
    start, memory = time.perf_counter(), Memory()
    results = Results(COLUMNS, current_values(args.on), before)
    steps = STEPS[args.on]
    with memory.used():
        cases, usual = [], []
        for name in args.steps or steps:
            cases.append(Case(steps[name](), args.on, memory, args.parts))
            usual.append(cases[-1].figures())
            progress(f"{name}, as it is: {time.perf_counter() - start:.0f} s")
        for tuned in VALUES:
            if tuned.seen_on != args.on or (args.values and tuned.name not in args.values):
                continue
            made = []
            for row in rows(tuned, cases, usual):
                made.append(row)
                progress(f"{time.perf_counter() - start:.0f} s: {' | '.join(row)}")
            results.replace(f"`{tuned.qualified}`", made)
            yield results.text(head(args.on, time.perf_counter() - start))


if __name__ == "__main__":
    main()
