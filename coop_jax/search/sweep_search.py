"""Sweep search: the plan for a budget where XLA packs worse than a plan does.

As `FeedbackSearch`, for a TPU: not one plan at a time, corrected by what the last one was
missed by, but of many plans those that are likely to fit.
"""

from __future__ import annotations

from coop_jax.backends.tpu.pool_sweep import Scanned, scan_down, scan_tightest
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    LEAST_STEP,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    SLACK_WORTH_USING,
    Measured,
    least,
)
from coop_jax.search.problem import Problem

# A first plan that needs this part of its pool more than expected is compiled with guards
# as well.
_OUT_OF_HAND = 20
_CLEARLY_LESS = 0.75
# Many plans need this part of the room less than expected; of layered ones, whose order is
# left to XLA, a part of the budget.
_LIKELY_LUCK = 20
_LUCK_OF_LAYERED = 40


class SweepSearch:
    """Plans for many pools, and compiles the most promising."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._without = problem.placement.backend.without
        self._is_guarded = False  # Plans from here on.

    def best(self, budget_bytes: int, num_left: int = MAX_COMPILATIONS) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget.

        Arguments:
            num_left: how many plans may be compiled.
        """
        self._is_guarded = False
        room = budget_bytes - self._problem.fixed_bytes
        problem = self._problem
        graphs, options = problem.graphs, problem.options
        plans = scan_down(graphs, options, room, self._without) if room > 0 else []
        found: Measured | None = None
        tried: set[bytes] = set()
        error = 0  # To be left free for it, unless a plan is layered.
        while num_left > 0:
            luck = 0 if found is None else budget_bytes // _LUCK_OF_LAYERED
            plan = self._next(plans, tried, room, error, luck)
            if plan is None:
                break
            if found is not None and plan.recompute_seconds >= found.recompute_seconds:
                break
            tried.add(plan.key)
            compiled = self._compile(plan, budget_bytes, may_try_both=len(tried) == 1)
            num_left -= len(compiled)
            measured = min(compiled, key=least)
            over = measured.total_bytes - budget_bytes
            missed_by = measured.total_bytes - measured.candidate.planned_bytes
            if over > 0 or measured.compiled is None:
                if found is not None:
                    break
                if plan.is_layered:  # The others are no better known.
                    plans = [p for p in plans if not p.is_layered]
                else:
                    error = max(error, missed_by, 0) + room // LEAST_STEP
                continue
            found = measured
            gain = found.recompute_seconds / plan.schedule.statistics.compute_seconds
            if gain <= GAIN_WORTH_TRYING:
                break
            if -over <= SLACK_WORTH_USING * room:
                plans = [p for p in plans if p.is_layered]
            # As much luck as half of what is left, within what is likely.
            error = max(over // 2, -room // _LIKELY_LUCK)
        return found

    def tightest(self, budget_bytes: int, num_left: int = MAX_TIGHTEST) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        The plans are the same for every budget; `num_left` of them may be compiled.
        """
        self._is_guarded = False
        problem = self._problem
        _, smallest = problem.smallest_of(problem.graphs)
        plans = scan_tightest(
            problem.graphs, problem.options, smallest.pool_bytes, self._without
        )
        tried: list[Measured] = []
        for plan in _less_alike(plans):
            tried += self._compile(plan, budget_bytes, may_try_both=not tried)
            fits = least(tried[-1]) <= (False, budget_bytes)
            if fits or len(tried) >= num_left:
                break
        return min(tried, key=least)

    def _compile(
        self, plan: Scanned, budget_bytes: int, *, may_try_both: bool
    ) -> list[Measured]:
        """A plan; the first one, if it gets out of hand, the other way as well.

        Without guards XLA orders things so that mostly less is alive than in the plan. But
        of a U-Net it then frees large images very late. It is much the same for all plans
        of a step.
        """
        if plan.is_layered:
            return [self._problem.compile_plan(plan.graph, plan.schedule, is_guarded=False)]
        measured = self._problem.compile_plan(
            plan.graph, plan.schedule, is_guarded=self._is_guarded
        )
        planned_bytes = measured.candidate.planned_bytes
        missed_by = measured.total_bytes - planned_bytes
        planned_room = planned_bytes - self._problem.fixed_bytes
        is_in_hand = missed_by <= planned_room // _OUT_OF_HAND
        fits = least(measured) <= (False, budget_bytes)
        if fits or is_in_hand or not may_try_both:
            return [measured]
        other = self._problem.compile_plan(
            plan.graph, plan.schedule, is_guarded=not self._is_guarded
        )
        if other is measured:  # There are no guards in this plan.
            return [measured]
        self._is_guarded ^= least(other) < least(measured)
        return [measured, other]

    def _next(
        self,
        plans: list[Scanned],
        tried: set[bytes],
        room: int,
        error: int,
        luck: int,
    ) -> Scanned | None:
        """The plan that recomputes least of those likely to fit, or else, at first, the
        likeliest: what it needs says what the others may."""
        for plan in plans:
            left_free = -luck if plan.is_layered else error
            if plan.key not in tried and plan.likely_bytes + left_free <= room:
                return plan
        if tried:
            return None
        return min(plans, key=lambda plan: plan.likely_bytes, default=None)


def _less_alike(plans: list[Scanned]) -> list[Scanned]:
    """With the best that recomputes clearly less than the first one in second place.

    What recomputes as much as the first is likely to miss as it did.
    """
    first, *others = plans
    most = _CLEARLY_LESS * first.recompute_seconds
    second = [plan for plan in others if plan.recompute_seconds <= most][:1]
    return [first, *second, *(plan for plan in others if plan not in second)]
