"""Feedback search: one plan at a time, each corrected by the compilation of the last one.

For a budget that is likely to be kept a descent (`search.descent`); and the tightest plans,
which are the same for all budgets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from coop_jax.base.threads import at_once
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import Planned, key_of, plan_pool
from coop_jax.search.candidates import (
    LEAST_STEP,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    MAX_TIGHTEST_IN_DOUBT,
    Enough,
    Measured,
    least,
    never,
)
from coop_jax.search.descent import Descent
from coop_jax.search.learnt_scratch import LearntScratch
from coop_jax.search.other_orders import in_order
from coop_jax.search.problem import Problem

# For the tightest plans: the parts of the smallest pool that can be planned, which a plan
# may use where no single operation needs more.
_FLOOR_PREFERENCES = (0.95, 0.9, 0.85, 0.8, 0.7)
# Bytes are clearly more than others from one over this number of them on. Where XLA needs
# clearly more than planned, how it packs a few large values decides, not how many it has.
_CLEARLY = 20


class FeedbackSearch:
    """A search that plans, compiles, learns scratch and plans again."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def best(
        self,
        budget_bytes: int,
        num_left: int = MAX_COMPILATIONS,
        *,
        compiles_unlikely: bool = True,
        is_enough: Enough = never,
    ) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget.

        The pool shrinks until XLA's figure fits; then one more plan tries to use the room
        that is left.

        Arguments:
            budget_bytes: the budget.
            num_left: the number of plans that may be compiled.
            compiles_unlikely: whether plans are compiled, too, that are expected to miss
                the budget by far, where there are no others.
            is_enough: whether a compiled plan is the last one.

        Returns:
            None if none of the compiled plans keeps the budget.
        """
        return Descent(self._problem, budget_bytes).best(
            num_left, compiles_unlikely=compiles_unlikely, is_enough=is_enough
        )

    def tightest(
        self, budget_bytes: int, num_left: int = MAX_TIGHTEST, *, is_probe: bool = False
    ) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        The plans are the same for every budget; `num_left` of them may be compiled, each
        once more with order fences; for a probe with as few as for a budget, and only
        if these are expected to keep it, and no second plan that is expected to miss it
        clearly. Where XLA needs clearly more than planned for all of them, up to
        `MAX_TIGHTEST_IN_DOUBT`, apart from a probe.
        """
        learnt = LearntScratch(self._problem)
        tried: dict[bytes, Measured] = {}
        plans: list[Planned] | None = None
        error = 0
        may_doubt = num_left >= MAX_TIGHTEST and not is_probe
        while len(tried) < num_left or (may_doubt and self._is_in_doubt(tried)):
            if plans is None:
                plans = self._tightest_plans(learnt.graphs)
            plans = [plan for plan in plans if key_of(*plan) not in tried]
            if not plans:
                break
            planned = self._likeliest(plans)
            if is_probe and tried:
                planned_bytes = self._problem.planned_bytes(*planned)
                if planned_bytes > budget_bytes + budget_bytes // _CLEARLY:
                    break
            measured = self._problem.compile_plan(*planned, error)
            # On host devices a plan takes longer to compile than the step as written.
            if not (measured.keeps(budget_bytes) or self._problem.is_on_host_devices):
                most = budget_bytes if is_probe else math.inf
                measured = in_order(
                    self._problem, measured, spares_fences=is_probe, most_bytes=most
                )
            tried[key_of(*planned)] = measured
            if least(measured) <= (False, budget_bytes):
                break
            error = measured.total_bytes - self._problem.planned_bytes(*planned)
            if learnt.learn(planned, measured):
                plans, error = None, 0
        return min(tried.values(), key=least)

    def _is_in_doubt(self, tried: Mapping[bytes, Measured]) -> bool:
        """Whether another of the tightest plans may need less than those tried."""
        if self._problem.is_on_host_devices or len(tried) >= MAX_TIGHTEST_IN_DOUBT:
            return False
        smallest = min(tried.values(), key=least)
        planned_bytes = smallest.candidate.planned_bytes
        return smallest.total_bytes > planned_bytes + planned_bytes // _CLEARLY

    def _likeliest(self, plans: list[Planned]) -> Planned:
        """The first plan, unless another is expected to need clearly less."""
        expected = [self._problem.planned_bytes(*plan) for plan in plans]
        least_bytes = min(expected)
        if expected[0] <= least_bytes + least_bytes // LEAST_STEP:
            return plans[0]
        return plans[expected.index(least_bytes)]

    def _tightest_plans(self, graphs: Sequence[StepGraph]) -> list[Planned]:
        """The plans for the smallest pool, and for parts of it where no single operation
        needs more.

        Few operations need all of the smallest pool. XLA packs the values that are alive
        during the others worse than the plan does, and so beyond the pool: with fewer
        bytes for them, the compiled step is smaller up to a point.
        """
        graph, smallest = self._problem.smallest_of(graphs)
        pool = smallest.pool_bytes
        made = at_once(
            lambda part: plan_pool(graph, pool, self._problem.options, int(part * pool)),
            _FLOOR_PREFERENCES,
        )
        schedules = [smallest.schedule, *made]
        return [(graph, schedule) for schedule in schedules if schedule is not None]
