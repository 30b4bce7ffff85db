"""Fitted step: a step that keeps its budget, with its report."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from coop_jax import _ext
from coop_jax.arena.executable import StepWithArena
from coop_jax.arena.layout import NO_ARENA
from coop_jax.arena.stats import ArenaStats, planned_stats, recorded_stats
from coop_jax.compile.traced_step import TracedStep
from coop_jax.report import Plan, with_loops
from coop_jax.saved.recipe import Recipe, SavedRecipe
from coop_jax.search.candidates import Candidate
from coop_jax.search.placements import Placing
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.targets import target_of
from coop_jax.trace.costs import flops, seconds_again


@dataclasses.dataclass(frozen=True, eq=False)
class FittedStep:
    """A step that keeps its budget.

    Attributes:
        compiled: XLA's executable.
        jitted: the function of `jax.jit` that it was compiled from.
        plan: the plan.
        candidate: the schedule with its program; None if the step around its loops is left
            as it is.
        exchange_log: number of the log of checked exchanges; None: they are not checked.
    """

    compiled: Any
    jitted: Any
    plan: Plan
    candidate: Candidate | None = None
    exchange_log: int | None = None

    @property
    def is_unmodified(self) -> bool:
        """Whether the step fits as written."""
        return self.plan.is_unmodified

    def arena_stats(self) -> ArenaStats:
        """The copies of the last call of this step into and out of its arena."""
        arena = self.plan.arena
        if arena is None or not arena.stays:
            return planned_stats(NO_ARENA)
        assert self.exchange_log is not None, "asked of steps in checked mode"
        self.compiled.wait()
        stats = recorded_stats(arena, self.exchange_log)
        assert stats is not None, "the step was called, so its exchanges ran"
        return stats


def saveable(fitted: FittedStep, recipe: Recipe | SavedRecipe) -> FittedStep:
    """The step, with what `plan.save` writes."""
    plan = dataclasses.replace(fitted.plan, recipe=recipe)
    return dataclasses.replace(fitted, plan=plan)


def end_books_with(compiled: Any, placing: Placing) -> None:
    """The log of checked exchanges lasts as long as the executable."""
    if isinstance(compiled, StepWithArena) and placing.exchange_log is not None:
        weakref.finalize(compiled, _ext.remove_arena_books, placing.exchange_log)


def with_planned_loops(plan: Plan, traced: TracedStep, found: LoopsOfProgram) -> Plan:
    """The report of a step with that of its planned loops."""
    target = target_of(traced.device())
    eqns = traced.program.eqns
    step_seconds = sum(seconds_again(eqn, target) for eqn in eqns)
    total_flops = sum(map(flops, eqns))
    return with_loops(plan, found.planned, found.bodies, step_seconds, total_flops)
