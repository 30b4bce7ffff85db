"""Verify: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, copies and fragmentation make the compiled step need a little more or less
than the plan. A first plan leaves that little free; the difference that a compilation
shows corrects the pool of the next. A step over the budget is never returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.budget import format_bytes
from coop_jax.candidates import (
    GAIN_WORTH_TRYING,
    LEAST_STEP,
    SLACK_WORTH_USING,
    Candidate,
    Measured,
    least,
)
from coop_jax.errors import InfeasibleBudgetError
from coop_jax.graph import StepGraph
from coop_jax.measure import compile_measured
from coop_jax.plan import (
    PlanOptions,
    SmallestPool,
    plan_pool,
    smallest_pool,
)
from coop_jax.program import Program
from coop_jax.realize import XlaPlacement
from coop_jax.scanned_search import ScannedSearch

_MAX_COMPILATIONS = 5
# A first plan leaves this part of the room free: most compiled steps need up to about a
# hundredth more or less than planned, and a second compilation takes minutes where the
# last hundredth of the room saves little time.
_MARGIN = 1 / 128
# A plan that uses more has failed by then, so more has to be left.
_AFTER_A_MISS = 3
# When nothing else fits: the smallest pool that can be planned, and how much of it the
# plan may use where no single operation needs more.
_FLOOR_PREFERENCES = (0.9, 0.8)
# Plans that are expected not to fit are made again, not compiled; so often between two
# compilations.
_MOST_SKIPPED = 4


class BudgetSearch:
    """The search for the plan that keeps a budget with the least recomputation.

    Arguments:
        graphs: the step's graph, in every order of operations that it may be planned in.
        options: of the planner.
        fixed_bytes: arguments and results, which no plan changes.
        placement: makes programs of schedules.
        compile_program: compiles a rewritten program.
        log: receives a line for every compilation.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        options: PlanOptions,
        fixed_bytes: int,
        placement: XlaPlacement,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
    ) -> None:
        self._graphs = graphs
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._placement = placement
        self._compile_program = compile_program
        self._log = log
        self._compiled: dict[bytes, Measured] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._compiled)

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone; nothing is compiled."""
        planned = self._plan(budget_bytes - self._fixed_bytes)
        if planned is None:
            graph, smallest = self._smallest_pool()
            raise InfeasibleBudgetError(
                budget_bytes,
                self._fixed_bytes + smallest.pool_bytes,
                graph.describe(smallest.blocking_operation),
                predicted=True,
            )
        return self._candidate(*planned, 0)

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found that XLA confirms; raises `InfeasibleBudgetError`."""
        scanned = self._scanned()
        best = scanned.best(budget_bytes) if scanned else self._search(budget_bytes)
        if best is not None:
            return best
        graph, smallest = self._smallest_pool()
        if scanned:
            found = scanned.tightest(smallest.pool_bytes, budget_bytes)
        else:
            found = self._floor(graph, smallest, budget_bytes)
        if found.total_bytes <= budget_bytes and found.compiled is not None:
            return found
        raise InfeasibleBudgetError(
            budget_bytes,
            found.total_bytes,
            graph.describe(smallest.blocking_operation),
            predicted=found.compiled is None,
        )

    def smallest(self) -> Measured:
        """The step that needs the least of those tried when no budget is small enough."""
        graph, smallest = self._smallest_pool()
        scanned = self._scanned()
        if scanned:
            return scanned.tightest(smallest.pool_bytes, 0)
        return self._floor(graph, smallest, 0)

    def _scanned(self) -> ScannedSearch | None:
        """Where XLA packs worse than a plan does, plans are searched otherwise."""
        if not self._placement.packs_by_time:
            return None
        return ScannedSearch(
            self._graphs,
            self._options,
            self._fixed_bytes,
            lambda plan, error: self._compile(
                self._candidate(plan.graph, plan.schedule, error)
            ),
        )

    def _floor(
        self, graph: StepGraph, smallest: SmallestPool, budget_bytes: int
    ) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        Few operations need all of the smallest pool. XLA places what the others keep
        worse than the plan does, and so above it: with less for them, the compiled step
        is smaller up to a point. The most promising comes first, and the others follow
        as long as they get smaller.
        """
        pool = smallest.pool_bytes
        schedules = [smallest.schedule] + [
            plan_pool(graph, pool, self._options, int(part * pool)) or smallest.schedule
            for part in _FLOOR_PREFERENCES
        ]
        schedules.sort(key=lambda s: self._planned_bytes(graph, s))
        tried: list[Measured] = []
        error = 0
        for schedule in schedules:
            candidate = self._candidate(graph, schedule, error)
            measured = self._compile(candidate)
            error = measured.total_bytes - candidate.planned_bytes
            tried.append(measured)
            is_better = tried.count(measured) == 1 and measured is min(tried, key=least)
            if not is_better or least(measured) <= (False, budget_bytes):
                break
        return min(tried, key=least)

    def _search(self, budget_bytes: int) -> Measured | None:
        """Use less until XLA's figure fits; then once try to use what is left."""
        room = budget_bytes - self._fixed_bytes
        preferred, error, margin = room - int(_MARGIN * room), 0, 0
        best: Measured | None = None
        seen: set[bytes] = set()
        skipped: list[tuple[StepGraph, Any]] = []
        may_skip = _MOST_SKIPPED
        while len(seen) < _MAX_COMPILATIONS and preferred > 0:
            planned = self._plan(room, preferred)
            if planned is None and not seen:
                planned, may_skip = skipped[-1] if skipped else self._plan(room), 0
            if planned is None:
                break
            graph, schedule = planned
            excess = self._planned_bytes(graph, schedule) + margin - budget_bytes
            if excess > 0 and len(skipped) < may_skip and best is None:
                skipped.append(planned)
                preferred -= max(excess, room // LEAST_STEP)
                continue
            if schedule.steps.tobytes() in seen:  # Tensors are large: ask for more.
                preferred -= room // 50
                continue
            seen.add(schedule.steps.tobytes())
            candidate = self._candidate(graph, schedule, error)
            measured = self._compile(candidate)
            over = measured.total_bytes - budget_bytes
            if over > 0 or measured.compiled is None:
                if best is not None:
                    break
                error = measured.total_bytes - candidate.planned_bytes
                # The next plan may be missed by a little more than this one.
                margin = max(margin, error + error * len(seen) // 4)
                may_skip = len(skipped) + _MOST_SKIPPED
                # Not all of it comes back, and the second time less than the first.
                preferred -= max(len(seen) * (over + over // 8), room // LEAST_STEP)
                continue
            if best is not None:
                return min(best, measured, key=lambda m: m.recompute_seconds)
            best = measured
            gain = best.recompute_seconds / schedule.statistics.compute_seconds
            enough = SLACK_WORTH_USING * (1 if len(seen) == 1 else _AFTER_A_MISS)
            if -over <= enough * room or gain <= GAIN_WORTH_TRYING:
                break
            # Half of it: the error of one plan says little about that of the next.
            preferred, error = preferred + -over // 2, 0
        return best

    def _plan(
        self, room: int, preferred: int | None = None
    ) -> tuple[StepGraph, Any] | None:
        """The plan that recomputes least, in any of the orders."""
        plans = [
            (graph, plan_pool(graph, room, self._options, preferred))
            for graph in self._graphs
        ]
        return min(
            ((graph, schedule) for graph, schedule in plans if schedule is not None),
            key=lambda planned: planned[1].statistics.recompute_seconds,
            default=None,
        )

    def _smallest_pool(self) -> tuple[StepGraph, SmallestPool]:
        pools = [(graph, smallest_pool(graph, self._options)) for graph in self._graphs]
        return min(pools, key=lambda found: found[1].pool_bytes)

    def _candidate(self, graph: StepGraph, schedule: Any, error: int) -> Candidate:
        planned_bytes = self._planned_bytes(graph, schedule)
        return Candidate(
            graph=graph,
            schedule=schedule,
            realized=self._placement.realize(graph, schedule),
            planned_bytes=planned_bytes,
            predicted_bytes=planned_bytes + error,
        )

    def _planned_bytes(self, graph: StepGraph, schedule: Any) -> int:
        return self._fixed_bytes + self._placement.expected_bytes(
            graph, schedule, self._options
        )

    def _compile(self, candidate: Candidate) -> Measured:
        key = candidate.schedule.steps.tobytes()
        if key not in self._compiled:
            compiled, total_bytes = compile_measured(
                lambda: self._compile_program(candidate.realized.program)
            )
            measured = Measured(candidate, compiled, total_bytes)
            self._compiled[key] = measured
            self._log(
                f"compilation {self.num_compilations}: predicted "
                f"{format_bytes(candidate.predicted_bytes)}, XLA says "
                f"{format_bytes(measured.total_bytes)}, recomputes "
                f"{measured.recompute_seconds:.2e} s"
            )
        return self._compiled[key]
