"""Fit form: one form of a step under a budget, its loops and then its straight line."""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.compile.as_written import AsWritten, compile_tagged, least_fixed_bytes
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_line import (
    Asked,
    fitted_line,
    fitted_plan,
    with_work_inside,
)
from coop_jax.fitted_step import FittedStep, saveable, with_planned_loops
from coop_jax.report import Plan, unmodified_plan
from coop_jax.saved.recipe import Recipe
from coop_jax.search.candidates import MAX_COMPILATIONS
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.loop_search import LoopSearch
from coop_jax.search.loops_and_line import LoopsAndLine
from coop_jax.search.placements import XLA_PLACES
from coop_jax.search.planned_loops import PlannedLoops
from coop_jax.search.straight_line_search import StraightLineSearch
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.searches import (
    as_written_seconds,
    inside_readers_search,
    layer_search,
    loop_search_of,
    problem_of,
)
from coop_jax.trace.costs import flops
from coop_jax.xla.memory_figures import memory_figures


def fit_form(
    asked: Asked,
    budget_bytes: int,
    compiled: list[AsWritten],
    begun: BudgetSearch | None = None,
    *,
    refuses_at_once: bool = True,
) -> FittedStep:
    """A step that keeps a budget: its loops, then the straight line.

    Arguments:
        budget_bytes: the budget.
        compiled: the step as written, which is taken out of the list; of another form of
            it, its tagged program alone.
        begun: as of `fit_step`.
        refuses_at_once: whether a step with loops whose arguments and results alone exceed
            the budget is refused before its loops are planned.

    Raises:
        InfeasibleBudgetError: if no plan fits.
    """
    traced, planner, log, placing, caller, subject, _ = asked
    as_written = compiled.pop()
    device, total_bytes = traced.device(), as_written.total_bytes
    log(
        f"unmodified step: {format_bytes(total_bytes)}, budget {format_bytes(budget_bytes)}"
    )
    if as_written.compiled is not None and total_bytes <= budget_bytes:
        total_flops = sum(map(flops, traced.program.eqns))
        compiled = as_written.compiled
        if not as_written.runs:
            compiled = traced.compile_lowered(traced.lower_as_written())
        plan = unmodified_plan(
            device,
            budget_bytes,
            total_bytes,
            asked.num_compilations,
            total_flops,
            traced.num_devices(),
        )
        fitted = FittedStep(compiled, traced.jitted, plan)
        return saveable(fitted, Recipe(subject))
    works_bytes = None if as_written.tagged is None else total_bytes
    tagged, is_as_written = as_written.tagged, as_written.compiled is not None
    loops = loop_search_of(traced, planner, total_bytes, log)
    smallest = None
    if loops is not None and tagged is not None and refuses_at_once:
        fixed_bytes = memory_figures(tagged).fixed_bytes
        if fixed_bytes > budget_bytes:
            raise _at_once(asked, budget_bytes, fixed_bytes, as_written)
    del as_written  # Its buffers are not needed while plans are compiled.
    if loops is not None:
        together = _loops_and_line(asked, loops)
        fitted = _with_loops(asked, loops, together, budget_bytes, total_bytes)
        if fitted is not None:
            return fitted
        smallest = loops.smallest().loops
        begun = together.begun(smallest)
        works_bytes = _least_that_works(works_bytes, loops.smallest())
    around = traced
    if loops is not None and begun is None:
        around, tagged = _around_loops(traced, tagged, loops)
    if begun is None:
        problem = problem_of(around, planner, log, tagged, placing, works_bytes, caller)
        search = BudgetSearch(problem)
    else:
        search = begun
        search.problem.unmodified_bytes = works_bytes
    search.problem.leaves_unchanged = tagged is not None and not is_as_written
    line = StraightLineSearch(search)
    if loops is None and placing.name == XLA_PLACES.name:
        line.also = lambda seconds: inside_readers_search(
            around, planner, log, tagged, caller, seconds
        )
        line.layers = lambda: layer_search(around, planner, log, tagged)
        line.seconds_as_written = lambda: as_written_seconds(around, tagged)
    found = line.run(budget_bytes)
    return fitted_line(
        asked, search, found, smallest, line.inside, budget_bytes, total_bytes
    )


def _at_once(
    asked: Asked, budget_bytes: int, fixed_bytes: int, as_written: AsWritten
) -> InfeasibleBudgetError:
    """The error for a budget below the bytes of arguments and results, before any plan: the
    smallest budget is found as ever when it is asked for."""

    def smallest_bytes() -> int:
        try:
            found = fit_form(asked, budget_bytes, [as_written], refuses_at_once=False)
        except InfeasibleBudgetError as error:
            return error.smallest_bytes
        return memory_figures(found.compiled).total_bytes

    return InfeasibleBudgetError(
        *(budget_bytes, smallest_bytes, None),
        least_bytes=fixed_bytes,
        unmodified_bytes=None if as_written.compiled is None else as_written.total_bytes,
        caller=asked.caller,
        compiles="plans of its loops and at most seven of what is around them",
    )


def smallest_of_form(asked: Asked, unmodified: AsWritten) -> FittedStep:
    """`fit_smallest` of a step with its `cond`s as they are."""
    traced, planner, log = asked.traced, asked.planner, asked.log
    loops = loop_search_of(traced, planner, unmodified.total_bytes, log)
    around, tagged = _around_loops(traced, unmodified.tagged, loops)
    search = BudgetSearch(problem_of(around, planner, log, tagged, XLA_PLACES))
    found = search.smallest(MAX_COMPILATIONS)
    layers = None if loops is not None else layer_search(around, planner, log, tagged)
    inside = None
    if layers is not None:
        by_layers = layers.smallest()
        if by_layers is not None and by_layers[0].total_bytes < found.total_bytes:
            found, inside = by_layers
    fitted = fitted_plan(asked, around, found, found.total_bytes, unmodified.total_bytes)
    if inside is not None:
        fitted = with_work_inside(fitted, around, inside)
    smallest = None
    if loops is not None:
        smallest = loops.smallest().loops
        plan = with_planned_loops(fitted.plan, traced, smallest)
        fitted = dataclasses.replace(fitted, plan=plan)
    return saveable(fitted, Recipe(asked.subject, smallest, found.candidate, inside))


def _with_loops(
    asked: Asked,
    loops: LoopSearch,
    together: LoopsAndLine,
    budget_bytes: int,
    unmodified_bytes: int,
) -> FittedStep | None:
    """The step with its loops planned for a budget, alone or together with the line around
    them; None if neither keeps it.

    The pairs of loops come first, then both together: what is inside of loops and groups of
    iterations takes more compilations, and mostly more time.
    """
    traced = asked.traced
    alone = loops.best_of_pairs(budget_bytes)
    both = together.best(budget_bytes, alone)
    if alone is None and both is None:
        alone = loops.best(budget_bytes)
    if both is not None:
        figures = budget_bytes, unmodified_bytes
        return fitted_line(asked, both.search, both.measured, both.loops, None, *figures)
    if alone is None:
        return None
    plan = _plan_of_loops(asked, alone, budget_bytes, unmodified_bytes)
    plan = with_planned_loops(plan, traced, alone.loops)
    fitted = FittedStep(alone.compiled, traced.jit(alone.program), plan)
    return saveable(fitted, Recipe(asked.subject, alone.loops))


def _loops_and_line(asked: Asked, loops: LoopSearch) -> LoopsAndLine:
    """The search of the loops together with the line around them."""

    def search_around(planned: LoopsOfProgram) -> BudgetSearch | None:
        around, tagged = _around(asked.traced, planned)
        if tagged is None:
            return None
        works_bytes = memory_figures(tagged).total_bytes
        return BudgetSearch(
            problem_of(
                *(around, asked.planner, asked.log, tagged),
                *(asked.placing, works_bytes, asked.caller),
            )
        )

    traced = asked.traced
    return LoopsAndLine(
        loops, search_around, least_fixed_bytes(traced), traced.num_devices()
    )


def _around_loops(
    traced: TracedStep, tagged: Any, loops: LoopSearch | None
) -> tuple[TracedStep, Any]:
    """The step that the straight line is planned of, and its compiled tagged program: the
    loops keep the fewest bytes."""
    if loops is None:
        return traced, tagged
    return _around(traced, loops.smallest().loops)


def _around(traced: TracedStep, planned: LoopsOfProgram) -> tuple[TracedStep, Any]:
    """The step with planned loops, and its compiled tagged program; None in place of that
    where XLA refuses it."""
    around = dataclasses.replace(traced, program=planned.program)
    return around, compile_tagged(around)


def _least_that_works(works_bytes: int | None, loops: PlannedLoops) -> int | None:
    """The least bytes that are known to work: of the step as written, None if XLA refuses
    it, or of its loops at the fewest bytes."""
    known = [] if works_bytes is None else [works_bytes]
    known += [] if loops.compiled is None else [loops.total_bytes]
    return min(known, default=None)


def _plan_of_loops(
    asked: Asked, found: PlannedLoops, budget_bytes: int, unmodified_bytes: int
) -> Plan:
    plan = unmodified_plan(
        asked.traced.device(),
        budget_bytes,
        unmodified_bytes,
        asked.num_compilations,
        0,
        asked.traced.num_devices(),
    )
    return dataclasses.replace(
        plan, predicted_bytes=found.predicted_bytes, measured_bytes=found.total_bytes
    )
