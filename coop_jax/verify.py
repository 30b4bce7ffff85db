"""Verify: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, fusions, copies and fragmentation make the compiled step need a little more or
less than the plan. How plans are searched depends on how XLA packs
(`coop_jax.corrected_search`, `coop_jax.scanned_search`). A step over the budget is never
returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.budget import format_bytes
from coop_jax.candidates import Candidate, Measured
from coop_jax.corrected_search import CorrectedSearch, WithScratch
from coop_jax.errors import InfeasibleBudgetError
from coop_jax.graph import StepGraph
from coop_jax.measure import compile_measured
from coop_jax.plan import PlanOptions, key_of, least_recomputation, smallest_of
from coop_jax.program import Program
from coop_jax.realize import XlaPlacement
from coop_jax.scanned_search import ScannedSearch


class BudgetSearch:
    """The search for the plan that keeps a budget with the least recomputation.

    Arguments:
        graphs: the step's graph, in every order of operations that it may be planned in.
        options: of the planner.
        fixed_bytes: arguments and results, which no plan changes.
        placement: makes programs of schedules.
        compile_program: compiles a rewritten program.
        log: receives a line for every compilation.
        with_scratch: the graphs again, with scratch of equations in bytes; None: nothing
            is learnt of a plan that missed but by how much.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        options: PlanOptions,
        fixed_bytes: int,
        placement: XlaPlacement,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
        with_scratch: WithScratch | None = None,
    ) -> None:
        self._graphs = graphs
        self._with_scratch = with_scratch
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._placement = placement
        self._compile_program = compile_program
        self._log = log
        self._compiled: dict[tuple[bytes, int], Measured] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._compiled)

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone; nothing is compiled."""
        room = budget_bytes - self._fixed_bytes
        planned = least_recomputation(self._graphs, self._options, room)
        if planned is None:
            graph, smallest = smallest_of(self._graphs, self._options)
            raise InfeasibleBudgetError(
                budget_bytes,
                self._fixed_bytes + smallest.pool_bytes,
                graph.describe(smallest.blocking_operation),
                predicted=True,
            )
        return self._candidate(*planned, 0)

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found that XLA confirms; raises `InfeasibleBudgetError`."""
        search = self._search()
        best = search.best(budget_bytes)
        if best is not None:
            return best
        found = search.tightest(budget_bytes)
        if found.total_bytes <= budget_bytes and found.compiled is not None:
            return found
        graph, smallest = smallest_of(self._graphs, self._options)
        raise InfeasibleBudgetError(
            budget_bytes,
            found.total_bytes,
            graph.describe(smallest.blocking_operation),
            predicted=found.compiled is None,
        )

    def smallest(self) -> Measured:
        """The step that needs the least of those tried when no budget is small enough."""
        return self._search().tightest(0)

    def _search(self) -> ScannedSearch | CorrectedSearch:
        """Where XLA packs worse than a plan does, plans are searched otherwise."""
        if self._placement.has_near_memory:
            return ScannedSearch(
                self._graphs, self._options, self._fixed_bytes, self._compile_plan
            )
        return CorrectedSearch(
            self._graphs,
            self._options,
            self._fixed_bytes,
            self._expected_bytes,
            self._compile_plan,
            self._with_scratch,
        )

    def _compile_plan(
        self, graph: StepGraph, schedule: Any, error: int = 0, *, is_guarded: bool = True
    ) -> Measured:
        candidate = self._candidate(graph, schedule, error, is_guarded=is_guarded)
        # Guards only add to the segments.
        key = key_of(graph, schedule), len(candidate.realized.segments)
        if key not in self._compiled:
            self._compiled[key] = self._compile(candidate)
        return self._compiled[key]

    def _candidate(
        self, graph: StepGraph, schedule: Any, error: int, *, is_guarded: bool = True
    ) -> Candidate:
        planned_bytes = self._fixed_bytes + self._expected_bytes(graph, schedule)
        return Candidate(
            graph=graph,
            schedule=schedule,
            realized=self._placement.realize(graph, schedule, is_guarded=is_guarded),
            planned_bytes=planned_bytes,
            predicted_bytes=planned_bytes + error,
        )

    def _expected_bytes(self, graph: StepGraph, schedule: Any) -> int:
        return self._placement.expected_bytes(graph, schedule, self._options)

    def _compile(self, candidate: Candidate) -> Measured:
        compiled, total_bytes = compile_measured(
            lambda: self._compile_program(candidate.realized.program)
        )
        measured = Measured(candidate, compiled, total_bytes)
        self._log(
            f"compilation {self.num_compilations + 1}: predicted "
            f"{format_bytes(candidate.predicted_bytes)}, XLA says "
            f"{format_bytes(measured.total_bytes)}, recomputes "
            f"{measured.recompute_seconds:.2e} s"
        )
        return measured
