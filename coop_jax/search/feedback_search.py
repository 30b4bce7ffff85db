"""Feedback search: one plan at a time, and what a compilation showed corrects the next.

A first plan for a budget leaves a little of it free. One that misses is read: what XLA
keeps alive beyond the plan is scratch of the next one's operations
(`search.live_bytes_feedback`). That explains most of a miss, not all of it, and what is
learnt of one plan may not hold for another: so a second miss counts in full, and where no
plan fits with all that was learnt, the graph is planned as it was read at first, by how
much the plan missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import (
    Planned,
    PlanOptions,
    Schedule,
    SmallestOf,
    key_of,
    least_recomputation,
    plan_pool,
)
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
from coop_jax.trace.program import Program

# A first plan leaves this part of the room free: most compiled steps need up to about a
# hundredth more or less than planned, and a second compilation takes minutes where the
# last hundredth of the room saves little time.
_MARGIN = 1 / 128
# A plan that uses more has failed by then, so more has to be left.
_AFTER_A_MISS = 3
# When nothing else fits: the smallest pool that can be planned, and how much of it the
# plan may use where no single operation needs more.
_FLOOR_PREFERENCES = (0.95, 0.9, 0.85, 0.8, 0.7)
# Plans that are expected not to fit are made again, not compiled; so often between two
# compilations.
_MOST_SKIPPED = 4

WithScratch = Callable[[Mapping[int, int]], Sequence[StepGraph]]


class CorrectedSearch:
    """Plans, compiles, learns and plans again.

    Arguments:
        graphs: the step's graph, in every order of operations that it may be planned in.
        options: of the planner.
        fixed_bytes: arguments and results.
        expected_bytes: what the compiled step of a plan is expected to need beside them.
        compile_plan: compiles a plan, given what an earlier one was missed by in bytes.
        smallest_of: the smallest pool that can be planned in any of a step's orders.
        with_scratch: the graphs again, with scratch in bytes of equations; None: of a
            plan that misses only the difference is known.
        readable: a compiled program again so that what XLA stores can be read of it; None:
            it can be anyway.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        options: PlanOptions,
        fixed_bytes: int,
        expected_bytes: Callable[[StepGraph, Schedule], int],
        compile_plan: Callable[[StepGraph, Schedule, int], Measured],
        smallest_of: SmallestOf,
        with_scratch: WithScratch | None = None,
        readable: Callable[[Program, Any], Any] | None = None,
    ) -> None:
        self._as_read = graphs
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._expected_bytes = expected_bytes
        self._compile_plan = compile_plan
        self._smallest_of = smallest_of
        self._with_scratch = with_scratch
        self._readable = readable
        self._forget()

    def best(self, budget_bytes: int, num_left: int = MAX_COMPILATIONS) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget.

        Uses less until XLA's figure fits; then once tries to use what is left.

        Arguments:
            num_left: how many plans may be compiled.
        """
        self._forget()
        room = budget_bytes - self._fixed_bytes
        preferred, error, margin = room - int(_MARGIN * room), 0, 0
        worst = 0  # By how much a plan was missed.
        best: Measured | None = None
        seen: set[bytes] = set()
        skipped: list[Planned] = []
        may_skip = _MOST_SKIPPED
        while len(seen) < num_left and preferred > 0:
            planned = self._plan(room, preferred)
            excess = 0
            if planned is not None and best is None:
                excess = self._planned_bytes(*planned) + margin - budget_bytes
            if planned is not None and excess > 0 and len(skipped) < may_skip:
                skipped.append(planned)
                preferred -= max(excess, room // LEAST_STEP)
                continue
            if best is None and self._scratch and (planned is None or excess > 0):
                self._forget()
                # Room for all of it; half of it is likely.
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
            measured = self._compile_plan(*planned, error)
            over = measured.total_bytes - budget_bytes
            if over > 0 or measured.compiled is None:
                if best is not None:
                    break
                error = measured.total_bytes - self._planned_bytes(*planned)
                worst = max(worst, error)
                less = len(seen) * (over + over // 8)
                # The next plan may be missed by a little more than this one.
                margin = max(margin, error + error * len(seen) // 4)
                if self._learn(planned, measured):
                    # It should be explained; the second time it was not.
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
            # Half of it: the error of one plan says little about that of the next.
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
            measured = self._compile_plan(*planned, error)
            tried[key_of(*planned)] = measured
            if least(measured) <= (False, budget_bytes):
                break
            error = measured.total_bytes - self._planned_bytes(*planned)
            if self._learn(planned, measured):
                plans, error = None, 0
        return min(tried.values(), key=least)

    def _likeliest(self, plans: list[Planned]) -> Planned:
        """The first, unless another is expected to need clearly less."""
        expected = [self._planned_bytes(*plan) for plan in plans]
        least_bytes = min(expected)
        if expected[0] <= least_bytes + least_bytes // LEAST_STEP:
            return plans[0]
        return plans[expected.index(least_bytes)]

    def _tightest_plans(self) -> list[Planned]:
        """Few operations need all of the smallest pool. XLA places what the others keep
        worse than the plan does, and so above it: with less for them, the compiled step
        is smaller up to a point."""
        graph, smallest = self._smallest_of(tuple(self._graphs))
        pool = smallest.pool_bytes
        schedules = [smallest.schedule] + [
            plan_pool(graph, pool, self._options, int(part * pool))
            for part in _FLOOR_PREFERENCES
        ]
        return [(graph, schedule) for schedule in schedules if schedule is not None]

    def _plan(self, room: int, preferred: int | None = None) -> Planned | None:
        return least_recomputation(self._graphs, self._options, room, preferred)

    def _planned_bytes(self, graph: StepGraph, schedule: Schedule) -> int:
        return self._fixed_bytes + self._expected_bytes(graph, schedule)

    def _forget(self) -> None:
        self._graphs, self._scratch = self._as_read, {}

    def _learn(self, planned: Planned, measured: Measured) -> bool:
        """Put what XLA kept alive beyond the plan into the graphs; was there anything?"""
        if self._with_scratch is None or measured.compiled is None:
            return False
        if measured.candidate.realized.arena is not None:
            return False
        compiled = measured.compiled
        if self._readable is not None:
            program = measured.candidate.realized.program
            compiled = self._readable(program, compiled)
        needed = scratch_needed(*planned, compiled)
        for index, size in needed.items():
            self._scratch[index] = max(self._scratch.get(index, 0), size)
        if needed:
            self._graphs = self._with_scratch(self._scratch)
        return bool(needed)
