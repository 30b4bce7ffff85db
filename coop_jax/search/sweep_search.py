"""Sweep search: the plan for a budget where XLA packs worse than a plan does.

For a TPU, in place of `FeedbackSearch`: not one plan at a time, corrected by the error of
the last one, but many plans, of which those that are likely to fit are compiled.
"""

from __future__ import annotations

from coop_jax.backends.tpu.pool_sweep import Scanned, scan_down, scan_tightest
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    LEAST_STEP,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    SLACK_WORTH_USING,
    Enough,
    Measured,
    best_of,
    least,
    never,
)
from coop_jax.search.problem import Problem

# A first plan that exceeds its expected bytes by more than one over this number of its pool
# is compiled with memory fences as well.
_MOST_EXCESS = 20
# The part of the first plan's recomputation that a clearly different plan does at most.
_CLEARLY_LESS = 0.75
# Many plans need fewer bytes than expected, by one over the first number of the room;
# layered ones, whose order is left to XLA, by one over the second number of the budget.
_OVERESTIMATE = 20
_OVERESTIMATE_OF_LAYERED = 40


class SweepSearch:
    """A search that plans for many pools and compiles the most promising plans."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._without = problem.placement.backend.without
        self._is_guarded = False  # Whether plans from here on have memory fences.
        self._scanned: dict[int, list[Scanned]] = {}  # By room: it takes many plans.

    def best(
        self,
        budget_bytes: int,
        num_left: int = MAX_COMPILATIONS,
        *,
        compiles_unlikely: bool = True,
        is_enough: Enough = never,
    ) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget; None if none
        does.

        Arguments:
            budget_bytes: the budget.
            num_left: the number of plans that may be compiled.
            compiles_unlikely: always, as plans that are expected to miss are none here.
            is_enough: whether a compiled plan is the last one.
        """
        del compiles_unlikely
        self._is_guarded = False
        room = budget_bytes - self._problem.fixed_bytes
        if room not in self._scanned:
            self._scanned[room] = self._scan(room) if room > 0 else []
        plans = self._scanned[room]
        found: Measured | None = None
        tried: set[bytes] = set()
        error = 0  # Bytes left free for the error of a plan that is not layered.
        while num_left > 0:
            overestimate = 0 if found is None else budget_bytes // _OVERESTIMATE_OF_LAYERED
            plan = self._next(plans, tried, room, error, overestimate)
            if plan is None:
                break
            if found is not None and plan.recompute_seconds >= found.recompute_seconds:
                break
            tried.add(plan.key)
            compiled = self._compile(plan, budget_bytes, may_try_both=len(tried) == 1)
            num_left -= len(compiled)
            measured = min(compiled, key=least)
            if is_enough(measured):
                tried_last = [measured] if found is None else [found, measured]
                return best_of(tried_last, budget_bytes)
            over = measured.total_bytes - budget_bytes
            missed_by = measured.total_bytes - measured.candidate.planned_bytes
            if over > 0 or measured.compiled is None:
                if found is not None:
                    break
                if plan.is_layered:  # The error of other layered plans is as uncertain.
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
            # The next plan may be expected to exceed the room by half of the bytes that
            # are left, within the likely error.
            error = max(over // 2, -room // _OVERESTIMATE)
        return found

    def tightest(
        self, budget_bytes: int, num_left: int = MAX_TIGHTEST, *, is_probe: bool = False
    ) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        The plans are the same for every budget; `num_left` of them may be compiled.
        """
        del is_probe
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

    def _scan(self, room: int) -> list[Scanned]:
        """Plans around a room; with partial results or expansions only where none without
        is likely to fit, as in `Problem.plan`."""
        problem = self._problem
        plans: list[Scanned] = []
        for stores_more in (False, True):
            graphs = [g for g in problem.graphs if g.stores_more == stores_more]
            if graphs and not any(plan.likely_bytes <= room for plan in plans):
                plans += scan_down(graphs, problem.options, room, self._without)
        return sorted(plans, key=lambda plan: plan.recompute_seconds)

    def _compile(
        self, plan: Scanned, budget_bytes: int, *, may_try_both: bool
    ) -> list[Measured]:
        """A plan, compiled; the first one, if it far exceeds its expected bytes, both with
        and without memory fences.

        Without memory fences XLA's order mostly has fewer live bytes than the plan. But in
        a U-Net it then frees large images very late. The better choice is much the same
        for all plans of a step.
        """
        if plan.is_layered:
            return [self._problem.compile_plan(plan.graph, plan.schedule, is_guarded=False)]
        measured = self._problem.compile_plan(
            plan.graph, plan.schedule, is_guarded=self._is_guarded
        )
        planned_bytes = measured.candidate.planned_bytes
        missed_by = measured.total_bytes - planned_bytes
        planned_room = planned_bytes - self._problem.fixed_bytes
        is_close = missed_by <= planned_room // _MOST_EXCESS
        fits = least(measured) <= (False, budget_bytes)
        if fits or is_close or not may_try_both:
            return [measured]
        other = self._problem.compile_plan(
            plan.graph, plan.schedule, is_guarded=not self._is_guarded
        )
        if other is measured:  # This plan has no memory fences.
            return [measured]
        self._is_guarded ^= least(other) < least(measured)
        return [measured, other]

    def _next(
        self,
        plans: list[Scanned],
        tried: set[bytes],
        room: int,
        error: int,
        overestimate: int,
    ) -> Scanned | None:
        """The plan that recomputes least of those likely to fit, or else, for the first
        compilation, the one likeliest to fit: its figure predicts those of the others.
        None if no further plan is likely to fit."""
        for plan in plans:
            left_free = -overestimate if plan.is_layered else error
            if plan.key not in tried and plan.likely_bytes + left_free <= room:
                return plan
        if tried:
            return None
        return min(plans, key=lambda plan: plan.likely_bytes, default=None)


def _less_alike(plans: list[Scanned]) -> list[Scanned]:
    """The plans, with the best that recomputes clearly less than the first in second place.

    A plan that recomputes as much as the first is likely to miss as that did.
    """
    first, *others = plans
    most = _CLEARLY_LESS * first.recompute_seconds
    second = [plan for plan in others if plan.recompute_seconds <= most][:1]
    return [first, *second, *(plan for plan in others if plan not in second)]
