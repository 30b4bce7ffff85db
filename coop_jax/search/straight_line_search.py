"""Straight-line search: a step as it is, and with values made again in two other ways.

Where the first plan recomputes noticeably, or there is none, layers are made again as under
a policy (`search.layer_search`), and the step is planned a second time on the program of
`emit.inside_readers`. Of the compiled steps the executable decides.
"""

from __future__ import annotations

from collections.abc import Callable

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.emit.inside_readers import InsideReaders
from coop_jax.search.candidates import Measured, best_of, may_gain
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.layer_search import LayerSearch

Also = Callable[[], tuple[BudgetSearch, InsideReaders] | None]
Found = list[tuple[Measured, InsideReaders]]


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
        self._least_of_layers: int | None = None

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
            found += self._with_layers(budget_bytes)
            is_kept = any(measured.keeps(budget_bytes) for measured, _ in found)
            found += self._inside_readers(budget_bytes, is_kept=is_kept)
        best = best_of((measured for measured, _ in found), budget_bytes)
        if best is None:
            assert refusal is not None, "a plan that was found keeps the budget"
            if self._least_of_layers is not None:
                refusal = refusal.beside_program(self._least_of_layers)
            raise refusal from None
        self.inside = next(inside for measured, inside in found if measured is best)
        return best

    def _with_layers(self, budget_bytes: int) -> Found:
        """The best step with layers made again."""
        layers = self.layers()
        if layers is None:
            return []
        found = layers.best(budget_bytes)
        self._num_others += layers.num_compilations
        if (smallest := layers.smallest_compiled) is not None:
            self._least_of_layers = smallest[0].total_bytes
        # Its schedule changes nothing: the executable alone knows what it costs.
        is_known = found is not None and found[0].executable_seconds is not None
        return [found] if found is not None and is_known else []

    def _inside_readers(self, budget_bytes: int, *, is_kept: bool) -> Found:
        """The best step with values made again inside of readers.

        Arguments:
            budget_bytes: the budget.
            is_kept: whether another step keeps it: then no plan is compiled to find only
                whether any does.
        """
        also = self.also()
        if also is None:
            return []
        search, inside = also
        try:
            measured = search.likely(budget_bytes) if is_kept else search.run(budget_bytes)
        except InfeasibleBudgetError:
            measured = None
        self._num_others += 1 + search.num_compilations
        return [] if measured is None else [(measured, inside)]
