"""Feedback search: one plan at a time, each corrected by the compilation of the last one.

A first plan for a budget leaves a little of it free. The executable of a plan that misses
is read: the bytes that XLA keeps alive beyond the plan become scratch of the next plan's
operations (`search.live_bytes_feedback`). That explains most of a miss, not all of it, and
scratch learnt from one plan may not hold for another: so a second miss counts in full, and
where no plan fits with all learnt scratch, the graph is planned as it was read at first,
with the plan's error left free.
"""

from __future__ import annotations

from coop_jax.plan.planner import Planned, key_of, plan_pool
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    LEAST_STEP,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    SLACK_WORTH_USING,
    Measured,
    least,
)
from coop_jax.search.live_bytes_feedback import scratch_needed
from coop_jax.search.problem import Problem

# A first plan leaves this part of the room free: most compiled steps need up to about a
# hundredth more or less than planned, and a second compilation takes minutes where the
# last hundredth of the room saves little time.
_MARGIN = 1 / 128
# After a miss, so many times `SLACK_WORTH_USING` has to be unused for one more compilation:
# a plan that uses more has failed by then.
_AFTER_A_MISS = 3
# For the tightest plans: the parts of the smallest pool that can be planned, which a plan
# may use where no single operation needs more.
_FLOOR_PREFERENCES = (0.95, 0.9, 0.85, 0.8, 0.7)
# Plans that are expected not to fit are made again instead of compiled, at most so often
# between two compilations.
_MOST_SKIPPED = 4


class FeedbackSearch:
    """A search that plans, compiles, learns scratch and plans again."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._forget()

    def best(self, budget_bytes: int, num_left: int = MAX_COMPILATIONS) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget.

        The pool shrinks until XLA's figure fits; then one more plan tries to use the room
        that is left.

        Arguments:
            budget_bytes: the budget.
            num_left: the number of plans that may be compiled.

        Returns:
            None if none of the compiled plans keeps the budget.
        """
        self._forget()
        room = budget_bytes - self._problem.fixed_bytes
        preferred, error, margin = room - int(_MARGIN * room), 0, 0
        worst = 0  # The largest error of a plan, in bytes.
        best: Measured | None = None
        seen: set[bytes] = set()
        skipped: list[Planned] = []
        may_skip = _MOST_SKIPPED
        while len(seen) < num_left and preferred > 0:
            planned = self._plan(room, preferred)
            excess = 0
            if planned is not None and best is None:
                excess = self._problem.planned_bytes(*planned) + margin - budget_bytes
            if planned is not None and excess > 0 and len(skipped) < may_skip:
                skipped.append(planned)
                preferred -= max(excess, room // LEAST_STEP)
                continue
            if best is None and self._scratch and (planned is None or excess > 0):
                self._forget()
                # The margin leaves room for all of the error; half of it is likely.
                margin, error = worst + worst // 4, worst // 2
                preferred = room - margin
                skipped, may_skip = [], _MOST_SKIPPED
                continue
            if planned is None and best is None:
                planned = skipped[-1] if skipped else self._plan(room)
                skipped, may_skip = [], 0
                if planned is not None and key_of(*planned) in seen:
                    break
            if planned is None:
                break
            if key_of(*planned) in seen:  # Tensors are large: ask for more.
                preferred -= room // 50
                continue
            seen.add(key_of(*planned))
            measured = self._problem.compile_plan(*planned, error)
            over = measured.total_bytes - budget_bytes
            if over > 0 or measured.compiled is None:
                if best is not None:
                    break
                error = measured.total_bytes - self._problem.planned_bytes(*planned)
                worst = max(worst, error)
                less = len(seen) * (over + over // 8)
                # The error of the next plan may be a little larger than that of this one.
                margin = max(margin, error + error * len(seen) // 4)
                if self._learn(planned, measured):
                    # The scratch should explain the first miss; it did not the second time.
                    is_first = len(seen) == 1
                    margin, less = (error // 4, 0) if is_first else (error, over)
                    margin = max(0, margin)
                    error = 0
                preferred -= max(less, room // LEAST_STEP)
                skipped, may_skip = [], _MOST_SKIPPED
                continue
            if best is not None:
                return min(best, measured, key=lambda m: m.recompute_seconds)
            best = measured
            statistics = planned[1].statistics
            gain = best.recompute_seconds / statistics.compute_seconds
            enough = SLACK_WORTH_USING * (1 if len(seen) == 1 else _AFTER_A_MISS)
            if -over <= enough * room or gain <= GAIN_WORTH_TRYING:
                break
            # Half of the free room: one plan's error says little about that of the next.
            preferred, error = preferred + -over // 2, 0
        return best

    def tightest(self, budget_bytes: int, num_left: int = MAX_TIGHTEST) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        The plans are the same for every budget; `num_left` of them may be compiled.
        """
        self._forget()
        tried: dict[bytes, Measured] = {}
        plans: list[Planned] | None = None
        error = 0
        while len(tried) < num_left:
            if plans is None:
                plans = self._tightest_plans()
            plans = [plan for plan in plans if key_of(*plan) not in tried]
            if not plans:
                break
            planned = self._likeliest(plans)
            measured = self._problem.compile_plan(*planned, error)
            tried[key_of(*planned)] = measured
            if least(measured) <= (False, budget_bytes):
                break
            error = measured.total_bytes - self._problem.planned_bytes(*planned)
            if self._learn(planned, measured):
                plans, error = None, 0
        return min(tried.values(), key=least)

    def _likeliest(self, plans: list[Planned]) -> Planned:
        """The first plan, unless another is expected to need clearly less."""
        expected = [self._problem.planned_bytes(*plan) for plan in plans]
        least_bytes = min(expected)
        if expected[0] <= least_bytes + least_bytes // LEAST_STEP:
            return plans[0]
        return plans[expected.index(least_bytes)]

    def _tightest_plans(self) -> list[Planned]:
        """The plans for the smallest pool, and for parts of it where no single operation
        needs more.

        Few operations need all of the smallest pool. XLA packs the values that are alive
        during the others worse than the plan does, and so beyond the pool: with fewer
        bytes for them, the compiled step is smaller up to a point.
        """
        graph, smallest = self._problem.smallest_of(self._graphs)
        pool = smallest.pool_bytes
        schedules = [smallest.schedule] + [
            plan_pool(graph, pool, self._problem.options, int(part * pool))
            for part in _FLOOR_PREFERENCES
        ]
        return [(graph, schedule) for schedule in schedules if schedule is not None]

    def _plan(self, room: int, preferred: int | None = None) -> Planned | None:
        return self._problem.plan(self._graphs, room, preferred)

    def _forget(self) -> None:
        self._graphs, self._scratch = self._problem.graphs, {}

    def _learn(self, planned: Planned, measured: Measured) -> bool:
        """Add the bytes that XLA kept alive beyond the plan to the graphs, as scratch;
        returns whether there were any."""
        problem = self._problem
        if problem.with_scratch is None or measured.compiled is None:
            return False
        if measured.candidate.realized.arena is not None:
            return False
        compiled = measured.compiled
        if problem.readable is not None:
            program = measured.candidate.realized.program
            compiled = problem.readable(program, compiled)
        needed = scratch_needed(*planned, compiled)
        for index, size in needed.items():
            self._scratch[index] = max(self._scratch.get(index, 0), size)
        if needed:
            self._graphs = problem.with_scratch(self._scratch)
        return bool(needed)
