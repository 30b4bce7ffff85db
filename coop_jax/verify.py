"""Verify: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, copies and fragmentation make the compiled step need a little more or less
than the plan. The difference is nearly constant from plan to plan, so the difference
that one compilation shows corrects the pool of the next. A step over the budget is
never returned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.budget import format_bytes
from coop_jax.errors import InfeasibleBudgetError
from coop_jax.graph import StepGraph
from coop_jax.measure import compile_measured
from coop_jax.placement import input_copies_are_free
from coop_jax.plan import PlanOptions, needed_bytes, plan_pool, smallest_pool
from coop_jax.program import Program
from coop_jax.rewrite import rewrite
from coop_jax.segments import Segment, cut

_MAX_COMPILATIONS = 5
# One more compilation, to recompute less, is worth it if the plan leaves this part of the
# room unused, and if it recomputes for at least this part of the step's time.
_SLACK_WORTH_USING = 0.04
_GAIN_WORTH_TRYING = 0.02
# Pools tried, relative to the smallest one that can be planned, when nothing else fits.
_FLOOR_POOLS = (1.0, 1.06, 1.15, 1.3)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan with its rewritten program.

    `planned_bytes` is what the schedule needs by itself, `predicted_bytes` that and the
    error that an earlier plan showed.
    """

    schedule: Any
    segments: list[Segment]
    program: Program
    planned_bytes: int
    predicted_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A compiled candidate with XLA's figure; not compiled where XLA refuses to."""

    candidate: Candidate
    compiled: Any
    total_bytes: int

    @property
    def recompute_seconds(self) -> float:
        return self.candidate.schedule.statistics.recompute_seconds


class BudgetSearch:
    """The search for the plan that keeps a budget with the least recomputation.

    Arguments:
        graph: the step's graph.
        options: of the planner.
        fixed_bytes: arguments and results, which no plan changes.
        platform: JAX's name of the platform that the step is compiled for.
        compile_program: compiles a rewritten program.
        log: receives a line for every compilation.
    """

    def __init__(
        self,
        graph: StepGraph,
        options: PlanOptions,
        fixed_bytes: int,
        platform: str,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
    ) -> None:
        self._graph = graph
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._fence_free_inputs = input_copies_are_free(platform)
        self._compile_program = compile_program
        self._log = log
        self._compiled: dict[bytes, Measured] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._compiled)

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone; nothing is compiled."""
        schedule = plan_pool(self._graph, budget_bytes - self._fixed_bytes, self._options)
        if schedule is None:
            smallest = smallest_pool(self._graph, self._options)
            raise InfeasibleBudgetError(
                budget_bytes,
                self._fixed_bytes + smallest.pool_bytes,
                self._graph.describe(smallest.blocking_operation),
                predicted=True,
            )
        return self._candidate(schedule, 0)

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found that XLA confirms; raises `InfeasibleBudgetError`."""
        best = self._search(budget_bytes)
        if best is not None:
            return best
        smallest = smallest_pool(self._graph, self._options)
        floor: list[Measured] = []
        for factor in _FLOOR_POOLS:
            schedule = plan_pool(
                self._graph, int(smallest.pool_bytes * factor), self._options
            )
            if schedule is None:
                schedule = smallest.schedule
            measured = self._compile(self._candidate(schedule, 0))
            floor.append(measured)
            if measured.total_bytes <= budget_bytes and measured.compiled is not None:
                return measured
        works = [measured for measured in floor if measured.compiled is not None]
        raise InfeasibleBudgetError(
            budget_bytes,
            min(measured.total_bytes for measured in works or floor),
            self._graph.describe(smallest.blocking_operation),
            predicted=not works,
        )

    def _search(self, budget_bytes: int) -> Measured | None:
        """Shrink the pool until XLA's figure fits; then once try to use what is left."""
        room = budget_bytes - self._fixed_bytes
        pool, error = room, 0
        best: Measured | None = None
        for attempt in range(_MAX_COMPILATIONS):
            schedule = plan_pool(self._graph, pool, self._options)
            if schedule is None:
                break
            candidate = self._candidate(schedule, error)
            measured = self._compile(candidate)
            over = measured.total_bytes - budget_bytes
            if over > 0 or measured.compiled is None:
                if best is not None:
                    break
                error = measured.total_bytes - candidate.planned_bytes
                # Not all of it comes back: a second miss takes off twice as much.
                pool -= max((1 + attempt) * (over + over // 8), room // 200)
                continue
            if best is not None:
                return min(best, measured, key=lambda m: m.recompute_seconds)
            best = measured
            gain = best.recompute_seconds / schedule.statistics.compute_seconds
            if -over <= _SLACK_WORTH_USING * room or gain <= _GAIN_WORTH_TRYING:
                break
            # Half of it: the error of one plan says little about that of the next.
            pool, error = pool + -over // 2, 0
        return best

    def _candidate(self, schedule: Any, error: int) -> Candidate:
        segments = cut(self._graph, schedule, fence_free_inputs=self._fence_free_inputs)
        planned_bytes = self._fixed_bytes + needed_bytes(schedule, self._options)
        return Candidate(
            schedule=schedule,
            segments=segments,
            program=rewrite(self._graph, segments),
            planned_bytes=planned_bytes,
            predicted_bytes=planned_bytes + error,
        )

    def _compile(self, candidate: Candidate) -> Measured:
        key = candidate.schedule.steps.tobytes()
        if key not in self._compiled:
            compiled, total_bytes = compile_measured(
                lambda: self._compile_program(candidate.program), self._fixed_bytes
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
