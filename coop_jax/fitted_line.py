"""Fitted line: the step of a compiled plan of its straight line, with its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.inside_readers import InsideReaders, made_again
from coop_jax.fitted_step import (
    FittedStep,
    end_books_with,
    saveable,
    with_planned_loops,
)
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import planned_plan, with_work_inside_readers
from coop_jax.saved.recipe import Recipe
from coop_jax.saved.subject import Subject
from coop_jax.search.candidates import Measured
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import Placing
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.targets import target_of

# Compilations before any plan: the step as written, and the tagged one, whose buffer
# assignment shows the stored values.
OF_UNMODIFIED = 2


class Asked(NamedTuple):
    """What `pipeline.fit_step` was asked for.

    Attributes:
        num_before: the step's compilations that no report of this plan counts.
    """

    traced: TracedStep
    planner: str | PlanOptions
    log: Callable[[str], None]
    placing: Placing
    caller: str
    subject: Subject
    num_before: int

    @property
    def num_compilations(self) -> int:
        """Compilations by XLA for this plan so far, bodies and tagged programs included."""
        return self.traced.num_compilations - self.num_before


def fitted_line(
    asked: Asked,
    search: BudgetSearch,
    found: Measured,
    loops: LoopsOfProgram | None,
    inside: InsideReaders | None,
    budget_bytes: int,
    unmodified_bytes: int,
) -> FittedStep:
    """The step with a plan of the line, around planned loops or of all of it.

    Arguments:
        inside: what the plan makes again inside of its readers, or of its layers.
    """
    traced, placing = asked.traced, asked.placing
    assert found.compiled is not None, "a search returns what XLA compiles"
    assert found.total_bytes <= budget_bytes, "a search returns what keeps the budget"
    end_books_with(found.compiled, placing)
    fitted = fitted_plan(asked, traced, found, budget_bytes, unmodified_bytes)
    worthwhile = search.problem.fixed_bytes + search.problem.worthwhile.pool_bytes
    if worthwhile < budget_bytes:
        plan = dataclasses.replace(fitted.plan, worthwhile_bytes=int(worthwhile))
        fitted = dataclasses.replace(fitted, plan=plan)
    if inside is not None:
        fitted = with_work_inside(fitted, traced, inside)
    if loops is not None:
        plan = with_planned_loops(fitted.plan, traced, loops)
        fitted = dataclasses.replace(fitted, plan=plan)
    fitted = dataclasses.replace(fitted, exchange_log=placing.exchange_log)
    return saveable(fitted, Recipe(asked.subject, loops, found.candidate, inside))


def with_work_inside(
    fitted: FittedStep, traced: TracedStep, inside: InsideReaders
) -> FittedStep:
    """The step with what it makes again inside of readers, or of layers, in its report."""
    again = made_again(traced.program, inside)
    target = target_of(traced.device())
    plan = with_work_inside_readers(fitted.plan, traced.program, again, target)
    return dataclasses.replace(fitted, plan=plan)


def fitted_plan(
    asked: Asked,
    traced: TracedStep,
    found: Measured,
    budget_bytes: int,
    unmodified_bytes: int,
) -> FittedStep:
    """The step of a plan that keeps the budget, with its report.

    Arguments:
        traced: the step, or the step with planned loops.
    """
    plan = planned_plan(
        traced.device(),
        budget_bytes,
        unmodified_bytes,
        asked.num_compilations,
        found,
        traced.num_devices(),
    )
    chosen = found.candidate
    return FittedStep(found.compiled, traced.jit(chosen.realized.program), plan, chosen)
