"""Candidates: a plan for a budget with its program, and XLA's figure for it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.search.placements import Realization

# Compilations of plans until one keeps a budget; of the tightest ones until the budget is
# refused, and where XLA needs clearly more for these than planned, so that others may need
# less; of others where one of the tightest keeps it; of those between one that keeps it and
# the budget.
MAX_COMPILATIONS = 3
MAX_TIGHTEST = 2
MAX_TIGHTEST_IN_DOUBT = 4
MAX_BESIDE_TIGHTEST = 2
MAX_CLOSING_IN = 2
# After a miss the next plan uses less by at least one over this number of the room.
LEAST_STEP = 100
# One more compilation, to recompute less, is worth it if the plan leaves this part of the
# room unused, and if it recomputes for at least this part of the step's time.
# On host devices a plan takes longer to compile than the step as written, and misses by
# more.
SLACK_WORTH_USING = 0.04
SLACK_ON_MESHES = 0.12
GAIN_WORTH_TRYING = 0.02


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan with its rewritten program.

    Attributes:
        graph: the graph that the schedule was planned on.
        schedule: the schedule.
        realized: its program.
        planned_bytes: the bytes that the compiled step is expected to need.
        predicted_bytes: these and the error that an earlier plan showed.
        is_guarded: whether it was cut with memory fences; see `segments.cut`.
        ordered_before: numbers of the executions with an order fence before them; see
            `search.order_feedback`.
        is_for_memory: whether XLA is asked to order the program for memory.
    """

    graph: StepGraph
    schedule: AnySchedule
    realized: Realization
    planned_bytes: int
    predicted_bytes: int
    is_guarded: bool = True
    ordered_before: frozenset[int] = frozenset()
    is_for_memory: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A compiled candidate with XLA's figure.

    Attributes:
        candidate: the plan.
        compiled: the executable; None where XLA refuses to compile.
        total_bytes: XLA's figure.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
    """

    candidate: Candidate
    compiled: Any
    total_bytes: int
    seconds_of: Callable[[Any], float | None] = lambda compiled: None

    @functools.cached_property
    def executable_seconds(self) -> float | None:
        """Of the executable's instructions; None if they are not known. Reading them takes
        a part of the time of a compilation, so only plans to choose from are read."""
        return None if self.compiled is None else self.seconds_of(self.compiled)

    @property
    def recompute_seconds(self) -> float:
        return self.candidate.schedule.statistics.recompute_seconds

    def keeps(self, budget_bytes: int) -> bool:
        return least(self) <= (False, budget_bytes)


Enough = Callable[[Measured], bool]


def never(measured: Measured) -> bool:
    """For a search that no compiled plan ends."""
    return False


def least(measured: Measured) -> tuple[bool, int]:
    """The key that orders steps by their bytes; those that XLA refuses to compile come
    last."""
    return (measured.compiled is None, measured.total_bytes)


def may_gain(found: Measured, least_seconds: float = 0.0) -> bool:
    """Whether another plan may recompute noticeably less.

    Arguments:
        least_seconds: what it is expected to recompute at least.
    """
    statistics = found.candidate.schedule.statistics
    gain = found.recompute_seconds - least_seconds
    return gain > GAIN_WORTH_TRYING * statistics.compute_seconds


def is_slower(measured: Measured, seconds: float) -> bool:
    """Whether an executable takes noticeably more than so many seconds, as far as is known.
    It is read only if these are finite."""
    if math.isinf(seconds):
        return False
    own = measured.executable_seconds
    return own is not None and own > (1 + GAIN_WORTH_TRYING) * seconds


def best_of(measured: Iterable[Measured], budget_bytes: int) -> Measured | None:
    """The fastest of those that keep a budget, and of equally fast ones the smallest; None
    if none does.

    Executables are compared by their instructions, where all have them to compare: plans
    that recompute least by the planner's model may store or tear apart more.
    """
    kept = [one for one in measured if one.keeps(budget_bytes)]
    if len(kept) > 1 and all(one.executable_seconds is not None for one in kept):
        return min(kept, key=lambda one: (one.executable_seconds, one.total_bytes))
    return min(kept, key=lambda one: (one.recompute_seconds, one.total_bytes), default=None)
