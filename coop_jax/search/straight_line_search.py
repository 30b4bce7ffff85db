"""Straight-line search: a step as it is, and with values made again in two other ways.

A schedule evicts values of the step as it is. Layers can be made again as under a policy
(`search.layer_search`), and cheap values inside of their readers: then the program of
`emit.inside_readers` is planned. Of the compiled steps the executable decides, and of a way
whose executable is noticeably slower than that of another one, no more are compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.emit.inside_readers import InsideReaders
from coop_jax.search.candidates import Measured, best_of, is_slower, may_gain
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.layer_search import LayerSearch

Also = Callable[[float], tuple[BudgetSearch | None, InsideReaders] | None]
Found = list[tuple[Measured, InsideReaders | None]]


class StraightLineSearch:
    """The search for the fastest plan of a straight line.

    Arguments:
        search: of the step as it is.

    Attributes:
        layers: makes the search of the step with layers made again; returns None where
            that is of no use.
        also: makes the search of the step with values made again inside of their readers,
            with one compilation, for the seconds of the fastest executable so far; returns
            None where that is of no use, and no search where the program that was compiled
            is slower before anything is evicted.
        seconds_as_written: returns the seconds of the executable of the step as written,
            infinite where they are not known.
        inside: what the plan that was found makes again inside of its readers, or of its
            layers; None if it is one of the step as it is.
    """

    def __init__(self, search: BudgetSearch) -> None:
        self.layers: Callable[[], LayerSearch | None] = lambda: None
        self.also: Also = lambda seconds: None
        self.seconds_as_written: Callable[[], float] = lambda: math.inf
        self.inside: InsideReaders | None = None
        self._search = search
        self._least_of_layers: int | None = None

    def run(self, budget_bytes: int) -> Measured:
        """The best plan found; as `BudgetSearch.run`.

        The first schedule, where one is expected to keep the budget, is enough if it is
        hardly slower than the step as written. Else come the layers, which may be enough as
        well, and then the other schedules. Where those take long to find, layers are first.

        Raises:
            InfeasibleBudgetError: if no program has a plan that keeps the budget.
        """
        layers = self.layers()
        if layers is not None and not self._search.sweeps:
            first = self._search.first(budget_bytes)
            is_kept = first is not None and first.keeps(budget_bytes)
            if first is not None and is_kept and not self._may_gain(first):
                return first
        found = self._with_layers(layers, budget_bytes)
        best = _best(found, budget_bytes)
        if best is not None and not self._may_gain(best):
            self.inside = found[0][1]
            return best
        refusal = None
        try:
            found += self._with_schedules(budget_bytes, found)
        except InfeasibleBudgetError as error:
            refusal = error
        best = _best(found, budget_bytes)
        if best is None or self._may_gain(best):
            found += self._inside_readers(budget_bytes, best)
            best = _best(found, budget_bytes)
        if best is None:
            assert refusal is not None, "a plan that was found keeps the budget"
            if self._least_of_layers is not None:
                refusal = refusal.beside_program(self._least_of_layers)
            raise refusal from None
        self.inside = next(inside for measured, inside in found if measured is best)
        return best

    def _may_gain(self, measured: Measured) -> bool:
        """Whether another plan may be noticeably faster: what fences make XLA store, the
        schedule does not count as recomputed."""
        return may_gain(measured) or is_slower(measured, self.seconds_as_written())

    def _with_layers(self, layers: LayerSearch | None, budget_bytes: int) -> Found:
        """The best step with layers made again."""
        if layers is None:
            return []
        found = layers.best(budget_bytes)
        if (smallest := layers.smallest_compiled) is not None:
            self._least_of_layers = smallest[0].total_bytes
        # Its schedule changes nothing: the executable alone knows what it costs.
        is_known = found is not None and found[0].executable_seconds is not None
        return [found] if found is not None and is_known else []

    def _with_schedules(self, budget_bytes: int, others: Found) -> Found:
        """The best schedule of the step as it is.

        Raises:
            InfeasibleBudgetError: if none keeps the budget, nor any other step.
        """
        best = _best(others, budget_bytes)
        if best is None:
            return [(self._search.run(budget_bytes), None)]
        measured = self._search.likely(budget_bytes, _seconds_of(best))
        return [] if measured is None else [(measured, None)]

    def _inside_readers(self, budget_bytes: int, best: Measured | None) -> Found:
        """The best step with values made again inside of readers.

        Arguments:
            budget_bytes: the budget.
            best: the fastest step that keeps it so far: then no plan is compiled to find
                only whether any does.
        """
        seconds = _seconds_of(best)
        also = self.also(seconds)
        if also is None:
            return []
        search, inside = also
        if search is None:
            return []
        try:
            if best is None:
                measured = search.run(budget_bytes)
            else:
                measured = search.likely(budget_bytes, seconds)
        except InfeasibleBudgetError:
            measured = None
        return [] if measured is None else [(measured, inside)]


def _best(found: Found, budget_bytes: int) -> Measured | None:
    return best_of((measured for measured, _ in found), budget_bytes)


def _seconds_of(measured: Measured | None) -> float:
    """Of its executable; infinite where they are not known."""
    seconds = None if measured is None else measured.executable_seconds
    return math.inf if seconds is None else seconds
