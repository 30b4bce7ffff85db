"""Straight-line search: a step as it is, and with values made again in two other ways.

Where the first plan recomputes noticeably, or there is none, the step is planned a second
time on the program of `emit.inside_readers`, and layers are made again as under a policy
(`search.layer_search`). Of the compiled steps the executable decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.emit.inside_readers import InsideReaders
from coop_jax.search.candidates import Measured, best_of, may_gain
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.layer_search import LayerSearch

Also = Callable[[], tuple[BudgetSearch, InsideReaders] | None]


class StraightLineSearch:
    """The search for the fastest plan of a straight line.

    Arguments:
        search: of the step as it is.

    Attributes:
        also: makes the search of the step with values made again inside of their readers,
            with one compilation; returns None where that is of no use.
        layers: makes the search of the step with layers made again; returns None where
            that is of no use.
        inside: what the plan that was found makes again inside of its readers, or of its
            layers; None if it is one of the step as it is.
    """

    def __init__(self, search: BudgetSearch) -> None:
        self.also: Also = lambda: None
        self.layers: Callable[[], LayerSearch | None] = lambda: None
        self.inside: InsideReaders | None = None
        self._search = search
        self._num_others = 0

    @property
    def num_compilations(self) -> int:
        """Compilations of all searches."""
        return self._search.num_compilations + self._num_others

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found; as `BudgetSearch.run`.

        Raises:
            InfeasibleBudgetError: if no program has a plan that keeps the budget.
        """
        refusal = None
        found: list[tuple[Measured, InsideReaders | None]] = []
        try:
            found.append((self._search.run(budget_bytes), None))
        except InfeasibleBudgetError as error:
            refusal = error
        if refusal is not None or may_gain(found[0][0]):
            found += self._of_others(budget_bytes)
        best = best_of((measured for measured, _ in found), budget_bytes)
        if best is None:
            assert refusal is not None, "a plan that was found keeps the budget"
            raise refusal
        self.inside = next(inside for measured, inside in found if measured is best)
        return best

    def _of_others(
        self, budget_bytes: int
    ) -> Iterator[tuple[Measured, InsideReaders | None]]:
        """The best steps with values made again inside of readers, and with layers made
        again."""
        also = self.also()
        if also is not None:
            search, inside = also
            try:
                yield search.run(budget_bytes), inside
            except InfeasibleBudgetError:
                pass
            finally:
                self._num_others += 1 + search.num_compilations
        layers = self.layers()
        if layers is not None:
            found = layers.best(budget_bytes)
            self._num_others += layers.num_compilations
            # Its schedule changes nothing: the executable alone knows what it costs.
            if found is not None and found[0].executable_seconds is not None:
                yield found
