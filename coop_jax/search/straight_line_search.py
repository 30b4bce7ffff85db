"""Straight-line search: a step as it is, and with cheap values made again in readers.

Where the first plan recomputes noticeably, or there is none, the step is planned a second
time on the program of `emit.inside_readers`, and of the two the executable decides.
"""

from __future__ import annotations

from collections.abc import Callable

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.emit.inside_readers import InsideReaders
from coop_jax.search.candidates import Measured, best_of
from coop_jax.search.driver import BudgetSearch, may_gain

Also = Callable[[], tuple[BudgetSearch, InsideReaders] | None]


class StraightLineSearch:
    """The search for the fastest plan of a straight line.

    Arguments:
        search: of the step as it is.

    Attributes:
        also: makes the search of the step with values made again inside of their readers,
            with one compilation; returns None where that is of no use.
        inside: what the plan that was found makes again inside of its readers; None if it
            is one of the step as it is.
    """

    def __init__(self, search: BudgetSearch) -> None:
        self.also: Also = lambda: None
        self.inside: InsideReaders | None = None
        self._search = search
        self._num_others = 0

    @property
    def num_compilations(self) -> int:
        """Compilations of both searches."""
        return self._search.num_compilations + self._num_others

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found; as `BudgetSearch.run`.

        Raises:
            InfeasibleBudgetError: if neither program has a plan that keeps the budget.
        """
        try:
            found = self._search.run(budget_bytes)
        except InfeasibleBudgetError:
            other = self._of_other(budget_bytes)
            if other is None:
                raise
            return other
        if not may_gain(found):
            return found
        other = self._of_other(budget_bytes)
        if other is None or best_of((found, other), budget_bytes) is found:
            self.inside = None
            return found
        return other

    def _of_other(self, budget_bytes: int) -> Measured | None:
        """The best plan with values made again inside of readers; None without one."""
        also = self.also()
        if also is None:
            return None
        search, self.inside = also
        try:
            return search.run(budget_bytes)
        except InfeasibleBudgetError:
            self.inside = None
            return None
        finally:
            self._num_others = 1 + search.num_compilations
