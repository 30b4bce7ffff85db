"""Driver: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, fusions, copies and fragmentation make the compiled step need a little more or
less than the plan. How plans are searched depends on how XLA packs
(`search.feedback_search`, `search.sweep_search`). A step over the budget is never
returned.

The search ends: `run` asks a `Search` at most three times, each time for a limited number
of compilations.
"""

from __future__ import annotations

from typing import Protocol

from coop_jax.plan.planner import least_recomputation
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    MAX_BESIDE_TIGHTEST,
    MAX_TIGHTEST,
    Candidate,
    Measured,
    least,
)
from coop_jax.search.feedback_search import FeedbackSearch
from coop_jax.search.problem import Problem
from coop_jax.search.refusal import Refusals
from coop_jax.search.sweep_search import SweepSearch

# Whether a budget can be kept is not known where its room is less than so many times the
# planner's lower bound: tight plans need up to twice what is predicted when compiled.
_AMPLE = 3
# A compiled plan that needs so many times what was expected says little about others.
_FAR_MORE = 1.5


class Search(Protocol):
    """How plans are chosen for compilation. Each call compiles at most `num_left` plans,
    so that it ends."""

    def best(self, budget_bytes: int, num_left: int = ...) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget."""
        ...

    def tightest(self, budget_bytes: int, num_left: int = ...) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest."""
        ...


class BudgetSearch:
    """The search for the plan that keeps a budget with the least recomputation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._refusals = Refusals(problem)

    @property
    def num_compilations(self) -> int:
        return len(self.problem.measured)

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone; nothing is compiled."""
        problem = self.problem
        room = budget_bytes - problem.fixed_bytes
        planned = least_recomputation(problem.graphs, problem.options, room)
        if planned is None:
            graph, smallest = problem.smallest_of(problem.graphs)
            if smallest.pool_bytes > room:
                needed_bytes = problem.fixed_bytes + smallest.pool_bytes
                raise self._refusals.after_plans(
                    budget_bytes, needed_bytes, is_predicted=True
                )
            planned = graph, smallest.schedule
        return problem.candidate(*planned)

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

    def _improved(self, search: Search, found: Measured, budget_bytes: int) -> Measured:
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
        room = budget_bytes - self.problem.fixed_bytes
        return room <= _AMPLE * self._refusals.least_pool_bytes

    def _is_in_doubt(self, budget_bytes: int) -> bool:
        """Did the tightest plans need far more than expected, so that others may need less?

        XLA undoes some of the tightest plans nearly whole: they recompute so much that it
        keeps what it likes alive between their fences.
        """
        expected = (m.candidate.planned_bytes for m in self.problem.measured)
        return min(expected, default=budget_bytes) * _FAR_MORE <= budget_bytes

    def _search(self) -> Search:
        """A plan says less of what XLA needs where XLA has a second memory."""
        if self.problem.placement.backend.sweeps_pools:
            return SweepSearch(self.problem)
        return FeedbackSearch(self.problem)
