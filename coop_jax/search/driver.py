"""Driver: plan, compile, read XLA's figure, and plan again until the budget is kept.

The planner's pool is not the budget: arguments and results lie outside of it, and XLA's
own order, fusions, copies and fragmentation make the compiled step need a little more or
less than the plan. The search depends on how XLA packs (`search.feedback_search`,
`search.sweep_search`). A step over the budget is never returned.

The search ends: `run` asks a `Search` at most three times, each time for a limited number
of compilations, and closes in on the budget once (`search.closing_in`).
"""

from __future__ import annotations

import math
from typing import Protocol

from coop_jax.plan.planner import least_recomputation
from coop_jax.search.candidates import (
    MAX_BESIDE_TIGHTEST,
    MAX_CLOSING_IN,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    Candidate,
    Enough,
    Measured,
    best_of,
    is_slower,
    least,
    may_gain,
)
from coop_jax.search.closing_in import closed_in
from coop_jax.search.feedback_search import FeedbackSearch
from coop_jax.search.problem import Problem
from coop_jax.search.refusal import Refusals
from coop_jax.search.sweep_search import SweepSearch

# It is uncertain whether a budget can be kept where its room is less than so many times
# the planner's lower bound: compiled, tight plans need up to twice the predicted bytes.
_AMPLE = 3
# A compiled plan that needs so many times the expected bytes says little about others.
_FAR_MORE = 1.5


class Search(Protocol):
    """A strategy that chooses plans for compilation. Each call compiles at most `num_left`
    plans, so that it ends."""

    def best(
        self,
        budget_bytes: int,
        num_left: int = ...,
        *,
        compiles_unlikely: bool = ...,
        is_enough: Enough = ...,
    ) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget; None if none
        does.

        Arguments:
            compiles_unlikely: whether plans are compiled, too, that are expected to miss
                the budget by far.
            is_enough: whether a compiled plan is the last one.
        """
        ...

    def tightest(
        self, budget_bytes: int, num_left: int = ..., *, is_probe: bool = ...
    ) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        Arguments:
            is_probe: whether order fences that are not expected to keep the budget are
                left out.
        """
        ...


class BudgetSearch:
    """The search for the plan that keeps a budget with the least recomputation."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._refusals = Refusals(problem)
        self._sweep = SweepSearch(problem)

    @property
    def num_compilations(self) -> int:
        return len(self.problem.measured)

    @property
    def sweeps(self) -> bool:
        """Whether plans for many pools are made for one budget, which takes long."""
        return self.problem.placement.backend.sweeps_pools

    def predict(self, budget_bytes: int) -> Candidate:
        """The plan for a budget by prediction alone, without any compilation.

        Raises:
            InfeasibleBudgetError: if no plan is predicted to keep the budget.
        """
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
        """The best plan found whose budget XLA's figure confirms.

        Where it is uncertain whether a budget works, plans that are expected to keep it are
        enough if one does. Else the tightest plans are compiled, which are the same for all
        budgets: one that was named before works. Where plans for many pools are made for
        one budget, the tightest come first.

        Raises:
            InfeasibleBudgetError: at once for a budget below the bytes that no plan can go
                below, or else after compiling the two tightest plans, and two more where
                XLA needs clearly more for them than planned, behind at most two that were
                expected to keep it; after two more where the tightest were expected to keep
                it by far, or need no less than the step as written. A plan that misses is
                compiled once more where order fences may help, and the first such that was
                expected to keep it in XLA's order for memory before that.
        """
        if self.is_refused_at_once(budget_bytes):
            raise self._refusals.at_once(budget_bytes, self._smallest_that_works)
        search = self._search()
        is_tight = self._is_tight(budget_bytes)
        found, is_tried, num_left = None, False, MAX_COMPILATIONS
        if not is_tight:
            found = self._likely(search, budget_bytes, num_left)
        elif not self.sweeps:
            # The tightest take a bisection, which is longer than to compile two plans. A
            # plan for less than the budget is expected to keep it, and may be aimed twice.
            room = budget_bytes - self.problem.fixed_bytes
            if room < self.problem.worthwhile.pool_bytes:
                num_left = MAX_BESIDE_TIGHTEST
            found = search.best(budget_bytes, num_left, compiles_unlikely=False)
            # Asked again, it says the same.
            is_tried = self.problem.is_gathered_early
        if found is None:
            found = search.tightest(budget_bytes)
            if not found.keeps(budget_bytes):
                others = None
                if self.problem.is_on_host_devices and (is_tried or not is_tight):
                    others = search.best(budget_bytes, num_left)
                if others is None:
                    self._try_others(search, found, budget_bytes, is_tried=is_tried)
            elif is_tight and not is_tried and may_gain(found):
                # The tightest were made for fewer bytes: even a plan that needs as many
                # may recompute less.
                search.best(budget_bytes, MAX_BESIDE_TIGHTEST)
        return self._improved(budget_bytes)

    def first(self, budget_bytes: int) -> Measured | None:
        """The first plan for a budget, compiled, whether it keeps it or not; None where the
        budget is tight, or refused at once."""
        if self.is_refused_at_once(budget_bytes) or self._is_tight(budget_bytes):
            return None
        seen: list[Measured] = []

        def is_enough(measured: Measured) -> bool:
            seen.append(measured)
            return True

        search = self._search()
        search.best(budget_bytes, 1, compiles_unlikely=False, is_enough=is_enough)
        return seen[0] if seen else None

    def likely(self, budget_bytes: int, seconds: float = math.inf) -> Measured | None:
        """The best plan of those that are expected to keep a budget, which another program
        keeps in any case; None if none does.

        Arguments:
            budget_bytes: the budget.
            seconds: of that program's executable: a plan that takes noticeably more is the
                last one that is compiled.
        """
        if self.is_refused_at_once(budget_bytes):
            return None

        def is_enough(measured: Measured) -> bool:
            return is_slower(measured, seconds)

        found = self._search().best(
            budget_bytes, MAX_COMPILATIONS, compiles_unlikely=False, is_enough=is_enough
        )
        if found is None or is_enough(found):
            return found
        return self._improved(budget_bytes)

    def is_refused_at_once(self, budget_bytes: int) -> bool:
        """Whether a budget is below the bytes that no plan can go below."""
        # XLA fuses some plans otherwise than the step as written, and needs less for them
        # than the bound, which is of that.
        is_known = best_of(self.problem.measured, budget_bytes) is not None
        return budget_bytes < self._refusals.least.bytes and not is_known

    def expected(self, budget_bytes: int) -> Measured | None:
        """The plan that `run` compiles first, if it keeps the budget; None if it does not,
        or if the tightest plans come first."""
        if self.sweeps:
            return None
        return self._search().best(budget_bytes, 1, compiles_unlikely=False)

    def probe(self, budget_bytes: int) -> Measured:
        """The first of the tightest plans that keeps a budget, or else the smallest: those
        that `run` compiles, too, where no other plan keeps it. Order fences that are not
        expected to keep it are left out."""
        return self._search().tightest(budget_bytes, is_probe=True)

    def smallest(self, num_left: int = MAX_TIGHTEST) -> Measured:
        """The step that needs the fewest bytes of those compiled for a budget of 0.

        Arguments:
            num_left: the number of plans that may be compiled.
        """
        return self._search().tightest(0, num_left)

    def _likely(self, search: Search, budget_bytes: int, num_left: int) -> Measured | None:
        """`search.best`; on host devices without plans that are expected to miss the budget
        by far: these take longer to compile than the step as written, and mostly it is one
        of the tightest that keeps it."""
        unlikely = not self.problem.is_on_host_devices
        return search.best(budget_bytes, num_left, compiles_unlikely=unlikely)

    def _try_others(
        self, search: Search, found: Measured, budget_bytes: int, *, is_tried: bool
    ) -> None:
        """Compile plans for the budget where none of the tightest, of which `found` is the
        smallest, keeps it, unless they were tried before.

        Raises:
            InfeasibleBudgetError: if no plan that was compiled keeps it.
        """
        is_doubtful = not is_tried and self._is_in_doubt(budget_bytes)
        if is_doubtful and search.best(budget_bytes, MAX_BESIDE_TIGHTEST) is not None:
            return
        if best_of(self.problem.measured, budget_bytes) is not None:
            return  # It was compiled for another budget.
        found = self._smallest_with_looser(search, found)
        if found.keeps(budget_bytes):
            return
        raise self._refusals.after_plans(
            budget_bytes, found.total_bytes, is_predicted=found.compiled is None
        )

    def _smallest_that_works(self) -> int:
        """XLA's bytes of the smallest plan that is compiled for a refusal."""
        return self._smallest_with_looser(self._search(), self.smallest()).total_bytes

    def _smallest_with_looser(self, search: Search, tightest: Measured) -> Measured:
        """The smallest of the tightest plans, or, where that needs no less than the step as
        written, the smallest with at most two looser ones.

        XLA undoes some of the tightest plans so far that none of them helps, where a plan
        for half of what can be saved does. That is the same for every budget.
        """
        most = self.problem.unmodified_bytes
        if most is None or self.sweeps or tightest.keeps(most - 1):
            return tightest
        half = (self._refusals.least.bytes + most) // 2
        search.best(half, MAX_BESIDE_TIGHTEST, compiles_unlikely=False)
        return min(self.problem.measured, key=least)

    def _improved(self, budget_bytes: int) -> Measured:
        """The best of all plans compiled so far, one of which keeps the budget, or one
        between it and the budget that recomputes noticeably less."""
        found = best_of(self.problem.measured, budget_bytes)
        assert found is not None, "a plan keeps the budget"
        # A sweep has compared plans for all pools.
        if not may_gain(found) or self.sweeps:
            return found
        problem = self.problem
        room = budget_bytes - problem.fixed_bytes
        worthwhile_bytes = problem.worthwhile.pool_bytes
        may_be_left = 0.0
        if problem.is_gathered_early or worthwhile_bytes < room:
            may_be_left = problem.slack_worth_using
        room = int(min(room, worthwhile_bytes))
        limit_bytes = problem.fixed_bytes + room
        if limit_bytes - found.total_bytes <= may_be_left * room:
            return found
        closed_in(problem, found, limit_bytes, MAX_CLOSING_IN)
        best = best_of(problem.measured, budget_bytes)
        assert best is not None, "one was found"
        return best

    def _is_tight(self, budget_bytes: int) -> bool:
        """Whether no plan may keep the budget, as far as predictions can be trusted."""
        room = budget_bytes - self.problem.fixed_bytes
        return room <= _AMPLE * self._refusals.least_pool_bytes

    def _is_in_doubt(self, budget_bytes: int) -> bool:
        """Whether the tightest plans needed far more than expected, so that others may
        need less.

        XLA undoes some of the tightest plans nearly completely: they recompute so much
        that XLA's own order decides which values are alive between their fences.
        """
        expected = (m.candidate.planned_bytes for m in self.problem.measured)
        return min(expected, default=budget_bytes) * _FAR_MORE <= budget_bytes

    def _search(self) -> Search:
        """The search for the step's backend: where XLA has a second memory, a plan predicts
        the bytes that XLA needs less well, so many plans are swept."""
        if self.sweeps:
            return self._sweep
        return FeedbackSearch(self.problem)
