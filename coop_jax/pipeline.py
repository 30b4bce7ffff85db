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

A step whose plan runs `cond`s again is planned in another form, too, whose gradients run
branches again (`loops.branches_again`): 3 to 7 are of one form (`fit_form`).

The result keeps the budget, by XLA's own figure, or is an error that names a budget that
works. Differences between backends are behind `backends.backend.Backend` in every stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.arena.layout import ArenaPlan
from coop_jax.base.budget import is_below_as_written, resolve_budget
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.compile.as_written import (
    AsWritten,
    compile_both,
    compile_in_turn,
    least_fixed_bytes,
)
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fit_form import fit_form, smallest_of_form
from coop_jax.fitted_branches import BranchesAgain, runs_conds_again
from coop_jax.fitted_line import OF_UNMODIFIED, Asked
from coop_jax.fitted_step import FittedStep
from coop_jax.plan.planner import PlanOptions
from coop_jax.saved.subject import Subject
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES, Placing
from coop_jax.searches import seconds_on_device
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
    again = BranchesAgain.of(traced, planner, subject)
    num_before = traced.num_compilations
    if unmodified is not None:
        num_before -= OF_UNMODIFIED
    if begun is not None:
        num_before -= begun.num_compilations
    asked = Asked(traced, planner, log, placing, caller, subject, num_before)
    compiled = [unmodified or as_written_for(traced, budget, caller)]
    del unmodified  # Its buffers are not needed while plans are compiled.
    total_bytes = compiled[0].total_bytes
    budget_bytes = resolve_budget(budget, total_bytes, traced.device(), caller)
    seconds = None
    if compiled[0].compiled is not None and total_bytes > budget_bytes:
        seconds = seconds_on_device(traced)(compiled[0].compiled)
    if again is None:
        fitted = fit_form(asked, budget_bytes, compiled, begun)
    else:
        fitted = _better_form(asked, again, budget_bytes, compiled, begun)
    return fitted if seconds is None else _relative_to(seconds, fitted, traced)


def _relative_to(seconds: float, fitted: FittedStep, traced: TracedStep) -> FittedStep:
    """A step with the time of its executable, relative to the seconds of that of the step
    as written, in its report."""
    own = seconds_on_device(traced)(fitted.compiled)
    if own is None or not seconds:
        return fitted
    plan = dataclasses.replace(fitted.plan, executable_overhead=own / seconds)
    return dataclasses.replace(fitted, plan=plan)


def _better_form(
    asked: Asked,
    again: BranchesAgain,
    budget_bytes: int,
    compiled: list[AsWritten],
    begun: BudgetSearch | None,
) -> FittedStep:
    """A step with `cond`s that keeps a budget, and where its plan runs those again, or
    there is none, the step whose gradients do, if that is faster.

    Arguments:
        again: the step whose gradients run branches again.
        budget_bytes, compiled, begun: as of `fit_form`.
    """
    placing, total_bytes, fitted = asked.placing, compiled[0].total_bytes, None
    try:
        fitted = fit_form(asked, budget_bytes, compiled, begun)
    except InfeasibleBudgetError as error:
        if error.operation is None:  # Arguments and results are the same in both forms.
            raise
        refusal = error
    else:
        # The books of an arena end with the first of the executables that have them.
        if not runs_conds_again(fitted.plan) or placing.name != XLA_PLACES.name:
            return fitted
    asked.log("the step whose gradients run branches again")
    asked = asked._replace(traced=again.traced)
    try:
        other = fit_form(asked, budget_bytes, [again.compiled(total_bytes)])
    except InfeasibleBudgetError as error:
        if fitted is None:
            raise refusal.or_lower(error) from None
        return _counted(asked, fitted)
    other = again.reported(other, total_bytes)
    if fitted is None or again.is_faster(other, fitted):
        return other
    return _counted(asked, fitted)


def _counted(asked: Asked, fitted: FittedStep) -> FittedStep:
    """A step with all compilations so far in its report."""
    plan = dataclasses.replace(fitted.plan, num_compilations=asked.num_compilations)
    return dataclasses.replace(fitted, plan=plan)


def as_written_for(
    traced: TracedStep, budget: int | str, caller: str = "remat_train_step"
) -> AsWritten:
    """The step before any plan, compiled to run only if it may keep the budget.

    Arguments as of `fit_step`. A step for several devices is compiled for each of them by
    all processors of the host, so its two programs are compiled in turn.
    """
    if is_below_as_written(budget, least_fixed_bytes(traced)):
        return compile_both(traced, to_run=False)
    if traced.num_devices() == 1:
        return compile_both(traced)
    device = traced.device()
    return compile_in_turn(
        traced, lambda total: total <= resolve_budget(budget, total, device, caller)
    )


def fit_smallest(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    unmodified: AsWritten,
) -> FittedStep:
    """The step of `fit_step` at the smallest budget that works.

    The smaller of the step with the tightest plan and of that with its layers made again;
    values inside of their readers are not made again, which keeps more. A step with `cond`s
    is planned in both forms.
    """
    subject = Subject.of(traced, planner, XLA_PLACES)
    again = BranchesAgain.of(traced, planner, subject)
    num_before = traced.num_compilations - OF_UNMODIFIED
    asked = Asked(
        *(traced, planner, log, XLA_PLACES, "remat_train_step", subject, num_before)
    )
    fitted = smallest_of_form(asked, unmodified)
    if again is None:
        return fitted
    form = again.compiled(unmodified.total_bytes)
    other = smallest_of_form(asked._replace(traced=again.traced), form)
    other = again.reported(other, unmodified.total_bytes)
    figures = [memory_figures(each.compiled).total_bytes for each in (fitted, other)]
    return other if figures[1] < figures[0] else _counted(asked, fitted)


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
