"""Driver: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, fusions, copies and fragmentation make the compiled step need a little more or
less than the plan. How plans are searched depends on how XLA packs
(`search.feedback_search`, `search.sweep_search`). A step over the budget is never
returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import (
    PlanOptions,
    key_of,
    least_recomputation,
    smallest_of,
)
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    MAX_BESIDE_TIGHTEST,
    MAX_TIGHTEST,
    Candidate,
    Measured,
    least,
)
from coop_jax.search.feedback_search import CorrectedSearch, WithScratch
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.refusal import Refusals
from coop_jax.search.sweep_search import ScannedSearch
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured

# Whether a budget can be kept is not known where its room is less than so many times the
# planner's lower bound: tight plans need up to twice what is predicted when compiled.
_AMPLE = 3
# A compiled plan that needs so many times what was expected says little about others.
_FAR_MORE = 1.5


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
        readable: a compiled program again so that what XLA stores can be read of it.
        least_fixed_bytes: arguments and results alone; None: `fixed_bytes`.
        unmodified_bytes: what the step as written needs, which is a budget that works; None
            if it is not known, or XLA refuses to compile it.
        caller: the function that errors name.
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
        *,
        readable: Callable[[Program, Any], Any] | None = None,
        least_fixed_bytes: int | None = None,
        unmodified_bytes: int | None = None,
        caller: str = "remat_train_step",
    ) -> None:
        self._graphs = graphs
        self._with_scratch = with_scratch
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._placement = placement
        self._compile_program = compile_program
        self._readable = readable
        self._log = log
        # By the orders of the graph, as read or as learnt: it takes a bisection.
        self._smallest_of = functools.cache(lambda graphs: smallest_of(graphs, options))
        self._refusals = Refusals(
            graphs,
            options,
            fixed_bytes if least_fixed_bytes is None else least_fixed_bytes,
            graphs[0].target.near_bytes if placement.backend.has_second_memory else 0,
            unmodified_bytes,
            caller,
            self._smallest_of,
        )
        self._compiled: dict[tuple[bytes, int], Measured] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._compiled)

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone; nothing is compiled."""
        room = budget_bytes - self._fixed_bytes
        planned = least_recomputation(self._graphs, self._options, room)
        if planned is None:
            graph, smallest = self._smallest_of(tuple(self._graphs))
            if smallest.pool_bytes > room:
                needed_bytes = self._fixed_bytes + smallest.pool_bytes
                raise self._refusals.after_plans(
                    budget_bytes, needed_bytes, is_predicted=True
                )
            planned = graph, smallest.schedule
        return self._candidate(*planned, 0)

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found that XLA confirms.

        Which budgets work does not depend on the one that is asked for: where it is not
        clear, the tightest plans are compiled first, and they are the same for all budgets.

        Raises:
            InfeasibleBudgetError: at once below what no plan can go below, or else after
                compiling the two tightest plans; after four where those were expected to
                keep the budget by far.
        """
        if budget_bytes < self._refusals.least.bytes:
            raise self._refusals.at_once(budget_bytes, lambda: self.smallest().total_bytes)
        search = self._search()
        if not self._is_tight(budget_bytes):
            best = search.best(budget_bytes)
            if best is not None:
                return best
        found = search.tightest(budget_bytes)
        if least(found) <= (False, budget_bytes):
            return self._improved(search, found, budget_bytes)
        if self._is_in_doubt(budget_bytes):
            best = search.best(budget_bytes, MAX_BESIDE_TIGHTEST)
            if best is not None:
                return best
        raise self._refusals.after_plans(
            budget_bytes, found.total_bytes, is_predicted=found.compiled is None
        )

    def smallest(self, num_left: int = MAX_TIGHTEST) -> Measured:
        """The step that needs the least of those tried when no budget is small enough.

        Arguments:
            num_left: how many plans may be compiled.
        """
        return self._search().tightest(0, num_left)

    def _improved(
        self, search: ScannedSearch | CorrectedSearch, found: Measured, budget_bytes: int
    ) -> Measured:
        """One of the tightest plans keeps the budget: one that recomputes less may, of as
        many bytes too, as they were made for fewer."""
        gain = found.recompute_seconds / found.candidate.schedule.statistics.compute_seconds
        if gain <= GAIN_WORTH_TRYING:
            return found
        best = search.best(budget_bytes, MAX_BESIDE_TIGHTEST)
        if best is None:
            return found
        return min(found, best, key=lambda m: m.recompute_seconds)

    def _is_tight(self, budget_bytes: int) -> bool:
        """May it be that no plan keeps the budget, as far as predictions can be trusted?"""
        return budget_bytes - self._fixed_bytes <= _AMPLE * self._refusals.least_pool_bytes

    def _is_in_doubt(self, budget_bytes: int) -> bool:
        """Did the tightest plans need far more than expected, so that others may need less?

        XLA undoes some of the tightest plans nearly whole: they recompute so much that it
        keeps what it likes alive between their fences.
        """
        expected = (m.candidate.planned_bytes for m in self._compiled.values())
        return min(expected, default=budget_bytes) * _FAR_MORE <= budget_bytes

    def _search(self) -> ScannedSearch | CorrectedSearch:
        """Where XLA packs worse than a plan does, plans are searched otherwise."""
        if self._placement.backend.has_second_memory:
            return ScannedSearch(
                self._graphs,
                self._options,
                self._fixed_bytes,
                self._compile_plan,
                self._smallest_of,
            )
        return CorrectedSearch(
            self._graphs,
            self._options,
            self._fixed_bytes,
            self._expected_bytes,
            self._compile_plan,
            self._smallest_of,
            self._with_scratch,
            self._readable,
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
