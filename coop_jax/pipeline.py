"""Pipeline: from a traced step to a compiled step under a budget, stage by stage.

1. **Trace** (`trace`, `compile.traced_step`): the step, gradients and optimizer included,
   is one flat program. After differentiation, since then a residual is a value like any
   other.
2. **Compile as written** (`compile.as_written`): XLA's figure decides whether a plan is
   needed, and its buffer assignment shows the stored values. Elementwise chains never reach
   memory, and no rule predicts on every backend which values do: so the compiler is asked
   before planning.
3. **Loops** (`loops`, `search.loop_search`): what a `scan` keeps for the `scan` of its
   gradient. Before the straight line around them, as their stacks are most of the bytes of
   a scanned model, and a body is planned in the time of one layer. Then what an iteration
   of any `scan` has alive at once (`search.tight_bodies`). If that keeps the budget, and no
   plan of loops and line together (`search.loops_and_line`) is faster, the rest of the step
   is left as it is.
4. **Graph** (`graph`): operations on stored values, in XLA's order. The equations of values
   that are not stored are part of the operations that read them (fusion regions). The core
   checks every graph that is made.
5. **Plan** (`plan`, C++): which values are evicted and recomputed, within a pool. The core
   validates every schedule with a replay that shares no code with the planner.
6. **Emit** (`emit`, `arena`): a schedule as a program with fences, which keep XLA from
   merging a recomputation with the first computation. Results keep their number and types.
7. **Compile and measure**: XLA's figure for the plan. The pool is not the budget, so 5 to 7
   are a search (`search`), and each compilation corrects the next plan.

The result keeps the budget, by XLA's own figure, or is an error that names a budget that
works. Differences between backends are behind `backends.backend.Backend` in every stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.arena.layout import ArenaPlan
from coop_jax.base.budget import format_bytes, is_below_as_written, resolve_budget
from coop_jax.compile.as_written import (
    AsWritten,
    compile_both,
    compile_in_turn,
    compile_tagged,
    predicted_fixed_bytes,
)
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_line import (
    OF_UNMODIFIED,
    Asked,
    fitted_line,
    fitted_plan,
    with_work_inside,
)
from coop_jax.fitted_step import FittedStep, saveable, with_planned_loops
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import Plan, unmodified_plan
from coop_jax.saved.recipe import Recipe
from coop_jax.saved.subject import Subject
from coop_jax.search.candidates import MAX_COMPILATIONS
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.loop_search import LoopSearch
from coop_jax.search.loops_and_line import LoopsAndLine
from coop_jax.search.placements import XLA_PLACES, Placing
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


def fit_step(
    traced: TracedStep,
    budget: int | str,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    unmodified: AsWritten | None = None,
    placing: Placing = XLA_PLACES,
    caller: str = "remat_train_step",
    begun: BudgetSearch | None = None,
) -> FittedStep:
    """A step that keeps a budget: as written if that does, or else planned.

    Arguments:
        traced: the step.
        budget: as of `remat_train_step`, checked.
        planner: as of `remat_train_step`.
        log: receives a line for every compilation.
        unmodified: the result of `compile_both`, for several budgets of one step; None:
            it is compiled here, by `as_written_for`.
        placing: the placement of planned tensors.
        caller: the function that errors name.
        begun: the search of a step without loops to plan, whose plans that were compiled
            before are not compiled again; None: it begins here.

    Raises:
        InfeasibleBudgetError: if no plan fits.
    """
    subject = Subject.of(traced, planner, placing)
    as_written = unmodified or as_written_for(traced, budget, caller)
    device, total_bytes = traced.device(), as_written.total_bytes
    budget_bytes = resolve_budget(budget, total_bytes, device, caller)
    log(
        f"unmodified step: {format_bytes(total_bytes)}, budget {format_bytes(budget_bytes)}"
    )
    if as_written.compiled is not None and total_bytes <= budget_bytes:
        total_flops = sum(map(flops, traced.program.eqns))
        plan = unmodified_plan(
            device,
            budget_bytes,
            total_bytes,
            OF_UNMODIFIED,
            total_flops,
            traced.num_devices(),
        )
        compiled = as_written.compiled
        if not as_written.runs:
            compiled = traced.compile_lowered(traced.lower_as_written())
        fitted = FittedStep(compiled, traced.jitted, plan)
        return saveable(fitted, Recipe(subject))
    works_bytes = None if as_written.compiled is None else total_bytes
    tagged = as_written.tagged
    del as_written, unmodified  # Their buffers are not needed while plans are compiled.
    asked = Asked(traced, planner, log, placing, caller, subject)
    loops = loop_search_of(traced, planner, total_bytes, log)
    num_compilations, smallest = 0, None
    if loops is not None:
        together = _loops_and_line(asked, loops)
        fitted = _with_loops(asked, loops, together, budget_bytes, total_bytes)
        if fitted is not None:
            return fitted
        smallest = loops.smallest().loops
        num_compilations = loops.num_compilations + together.num_compilations
        works_bytes = _least_that_works(works_bytes, loops.smallest())
    around, tagged = _around_loops(traced, tagged, loops)
    if begun is None or loops is not None:
        problem = problem_of(around, planner, log, tagged, placing, works_bytes, caller)
        search = BudgetSearch(problem)
    else:
        search = begun
        search.problem.unmodified_bytes = works_bytes
    line = StraightLineSearch(search)
    if loops is None and placing.name == XLA_PLACES.name:
        line.also = lambda seconds: inside_readers_search(
            around, planner, log, tagged, caller, seconds
        )
        line.layers = lambda: layer_search(around, planner, log, tagged)
        line.seconds_as_written = lambda: as_written_seconds(around, tagged)
    found = line.run(budget_bytes)
    figures = num_compilations + line.num_compilations, budget_bytes, total_bytes
    return fitted_line(asked, search, found, smallest, line.inside, *figures)


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
        loops, search_around, _least_fixed_bytes(traced), traced.num_devices()
    )


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
    num_compilations = loops.num_compilations + together.num_compilations
    if both is not None:
        figures = num_compilations, budget_bytes, unmodified_bytes
        return fitted_line(asked, both.search, both.measured, both.loops, None, *figures)
    if alone is None:
        return None
    plan = _plan_of_loops(traced, alone, budget_bytes, unmodified_bytes)
    plan = with_planned_loops(plan, traced, alone.loops, num_compilations)
    fitted = FittedStep(alone.compiled, traced.jit(alone.program), plan)
    return saveable(fitted, Recipe(asked.subject, alone.loops))


def as_written_for(
    traced: TracedStep, budget: int | str, caller: str = "remat_train_step"
) -> AsWritten:
    """The step before any plan, compiled to run only if it may keep the budget.

    Arguments as of `fit_step`. A step for several devices is compiled for each of them by
    all processors of the host, so its two programs are compiled in turn.
    """
    if is_below_as_written(budget, _least_fixed_bytes(traced)):
        return compile_both(traced, to_run=False)
    if traced.num_devices() == 1:
        return compile_both(traced)
    device = traced.device()
    return compile_in_turn(
        traced, lambda total: total <= resolve_budget(budget, total, device, caller)
    )


def _least_fixed_bytes(traced: TracedStep) -> int:
    """Bytes of arguments and results that a device has at least; 0 where several devices
    have a part of them each."""
    return 0 if traced.num_devices() > 1 else predicted_fixed_bytes(traced.program)


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
    traced: TracedStep, found: PlannedLoops, budget_bytes: int, unmodified_bytes: int
) -> Plan:
    plan = unmodified_plan(
        traced.device(),
        budget_bytes,
        unmodified_bytes,
        OF_UNMODIFIED,
        0,
        traced.num_devices(),
    )
    return dataclasses.replace(
        plan, predicted_bytes=found.predicted_bytes, measured_bytes=found.total_bytes
    )


def fit_smallest(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    unmodified: AsWritten,
) -> FittedStep:
    """The step of `fit_step` at the smallest budget that works.

    The smaller of the step with the tightest plan and of that with its layers made again;
    values inside of their readers are not made again, which keeps more.
    """
    loops = loop_search_of(traced, planner, unmodified.total_bytes, log)
    around, tagged = _around_loops(traced, unmodified.tagged, loops)
    search = BudgetSearch(problem_of(around, planner, log, tagged, XLA_PLACES))
    found = search.smallest(MAX_COMPILATIONS)
    subject = Subject.of(traced, planner, XLA_PLACES)
    num_compilations = search.num_compilations
    layers = None if loops is not None else layer_search(around, planner, log, tagged)
    inside = None
    if layers is not None:
        by_layers = layers.smallest()
        num_compilations += layers.num_compilations
        if by_layers is not None and by_layers[0].total_bytes < found.total_bytes:
            found, inside = by_layers
    fitted = fitted_plan(
        *(around, num_compilations, found),
        *(found.total_bytes, unmodified.total_bytes),
    )
    if inside is not None:
        fitted = with_work_inside(fitted, around, inside)
    smallest = None
    if loops is not None:
        smallest = loops.smallest().loops
        plan = with_planned_loops(fitted.plan, traced, smallest, loops.num_compilations)
        fitted = dataclasses.replace(fitted, plan=plan)
    return saveable(fitted, Recipe(subject, smallest, found.candidate, inside))


def placed_otherwise(
    traced: TracedStep, fitted: FittedStep, placing: Placing
) -> tuple[Any, ArenaPlan | None]:
    """The same schedule compiled for another placement, without regard to the budget.

    To compare placements; a step under a budget is planned for the one that it has.

    Returns:
        The executable, and the arena's plan, None where XLA places all tensors.
    """
    chosen = fitted.candidate
    assert chosen is not None, "the step was left as it is: there is no schedule"
    placement = placing.placement(traced)
    realized = placement.realize(chosen.graph, chosen.schedule)
    return traced.compile(realized.program), realized.arena
