"""Loops and line: what loops keep, together with what the line around them evicts.

A loop that keeps less recomputes in every iteration; where much of a step is beside its
loops, to evict values of that straight line may be cheaper, or the only way. Every place on
the path of the loops' plans (`search.loop_search`) leaves a pool for the line: the place is
taken where the modelled seconds of both together are fewest, and the line around these
loops is searched as that of any other step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from coop_jax.base.threads import at_once
from coop_jax.plan.planner import recomputed_quickly, unconstrained
from coop_jax.search.beside_path import shape_of
from coop_jax.search.candidates import Measured
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.loop_search import HARDLY, LoopSearch
from coop_jax.search.planned_loops import PlannedLoops
from coop_jax.search.problem import Problem
from coop_jax.search.stretches import LoopsOfProgram

# Places of a path that are compared, with one quick plan or two for each; but for its end,
# places next to each other differ by one over this number of what the path saves.
_MOST_PLACES = 16

SearchOf = Callable[[LoopsOfProgram], BudgetSearch | None]


class Together(NamedTuple):
    """A compiled plan of the line around planned loops."""

    measured: Measured
    loops: LoopsOfProgram
    search: BudgetSearch


class _Place(NamedTuple):
    """A place on the path of the loops' plans, with what loops keep there and its modelled
    seconds, on one device."""

    saved_bytes: int
    kept_bytes: int
    seconds: float
    is_grouped: bool


class LoopsAndLine:
    """The search for plans of a step's loops and of the line around them together.

    Arguments:
        loops: the search along the path of the loops' plans.
        search_of: compiles a program with planned loops to be read, and returns the search
            of the line around them; None where XLA refuses it.
        fixed_bytes: bytes of arguments and results; 0 where each device has a part of them.
        num_devices: devices that the step runs on.
    """

    def __init__(
        self, loops: LoopSearch, search_of: SearchOf, fixed_bytes: int, num_devices: int
    ) -> None:
        self._loops = loops
        self._search_of = search_of
        self._fixed_bytes = fixed_bytes
        self._num_devices = num_devices
        self._searches: dict[int, BudgetSearch | None] = {}

    def best(self, budget_bytes: int, alone: PlannedLoops | None = None) -> Together | None:
        """The best plan of both for a budget; None if none is found, or the model says that
        loops alone are as good.

        Arguments:
            budget_bytes: the budget.
            alone: the fastest plan of the loops alone that keeps it, if there is one: only
                a faster plan counts then, and nothing is compiled unless the model expects
                one.
        """
        if alone is not None and self._num_devices > 1:
            return None  # To read a step of many devices takes long, and mostly is no use.
        most = math.inf if alone is None else self._seconds_of(alone)
        faster = (place for place in self._places if self._least_seconds(place) < most)
        if not any(self._may_keep(budget_bytes, place) for place in faster):
            return None
        at = self._cheapest(budget_bytes, most)
        search = None if at is None else self._search_at(at)
        if at is None or search is None:
            return None
        seconds = math.inf if alone is None else alone.executable_seconds
        measured = search.likely(budget_bytes, seconds)
        if measured is None or not _is_faster(measured, alone):
            return None
        return Together(measured, self._plan_at(at), search)

    def begun(self, planned: LoopsOfProgram) -> BudgetSearch | None:
        """The search of the line around loops that are planned so; None if none was
        begun."""
        if planned.bodies:
            return None  # Those of a path of pairs have none.
        for saved_bytes, search in self._searches.items():
            at = self._plan_at(saved_bytes)
            if search is not None and shape_of(at.planned) == shape_of(planned.planned):
                return search
        return None

    def _seconds_of(self, alone: PlannedLoops) -> float:
        """Modelled seconds that plans of both have to stay below to be noticeably
        faster."""
        seconds = alone.loops.seconds / self._num_devices
        seconds += self._loops.memory.seconds_with(alone.total_bytes)
        return seconds - HARDLY * alone.executable_seconds

    def _least_seconds(self, place: _Place) -> float:
        """Modelled seconds that a plan of both takes there at least."""
        return place.seconds + self._loops.memory.seconds_for_temporaries(place.kept_bytes)

    def _may_keep(self, budget_bytes: int, place: _Place) -> bool:
        """Whether what the loops keep there leaves bytes to the line at all."""
        return self._fixed_bytes + place.kept_bytes < budget_bytes

    @functools.cached_property
    def _places(self) -> list[_Place]:
        """The places of the path where all iterations of each pair of loops do the same,
        without those that save hardly more than the one before."""
        return [*self._along()]

    def _along(self) -> Iterator[_Place]:
        pairs = self._loops.pairs
        if pairs is None or pairs.menu is None:
            return
        menu = pairs.menu
        least = -1
        for saved_bytes in menu.corner_places:
            if saved_bytes > least or saved_bytes == menu.most_saved_bytes:
                seconds = sum(pair.seconds for pair in menu.saving(saved_bytes))
                yield _Place(
                    saved_bytes,
                    (menu.first_bytes - saved_bytes) // self._num_devices,
                    seconds / self._num_devices,
                    is_grouped=saved_bytes > pairs.high,
                )
                least = saved_bytes + menu.most_saved_bytes // _MOST_PLACES

    def _cheapest(self, budget_bytes: int, most: float) -> int | None:
        """The saved bytes of the place with the fewest modelled seconds of loops and line,
        less than `most`. Infinite: loops alone do not keep the budget. Then XLA may need
        more beside them than expected, which is the line's, and where no place is known to
        work it is the last one without groups. Else None if none does, or the line is best
        left as it is there."""
        places = [place for place in self._places if self._may_keep(budget_bytes, place)]
        first = self._search_at(self._places[0].saved_bytes) if places else None
        if first is None:
            return None
        around = self._seconds_around(first.problem, budget_bytes, places)
        works = [
            (place, seconds)
            for place, seconds in zip(places, around, strict=True)
            if place.seconds + seconds < most
        ]
        # What groups need beside what they keep is not known before one is compiled.
        without_groups = [pair for pair in works if not pair[0].is_grouped]
        place, seconds = min(
            without_groups or works,
            key=lambda pair: pair[0].seconds + pair[1],
            default=(None, 0.0),
        )
        if most == math.inf:
            return self._last_without_groups(places) if place is None else place.saved_bytes
        return None if place is None or not seconds else place.saved_bytes

    def _last_without_groups(self, places: Sequence[_Place]) -> int | None:
        """The saved bytes of the place where loops keep the fewest bytes without groups:
        they may need less beside what they keep than at the first place, too."""
        without_groups = [place for place in places if not place.is_grouped]
        return without_groups[-1].saved_bytes if without_groups else None

    def _seconds_around(
        self, problem: Problem, budget_bytes: int, places: Sequence[_Place]
    ) -> list[float]:
        """Modelled seconds of the line at each place, in all of its room or in the pool
        that is worth them, by the graph around the loops at the first place; 0 if nothing
        has to be evicted, nor takes memory time."""
        graph, options, worthwhile = problem.graphs[0], problem.options, problem.worthwhile
        as_it_is = unconstrained(graph, options).statistics.max_live_bytes
        room = budget_bytes - problem.fixed_bytes
        pools = {room, int(min(room, worthwhile.pool_bytes))}

        def seconds_in(pool: int, saved_bytes: int) -> float:
            if pool + saved_bytes >= as_it_is:
                return worthwhile.seconds_for(max(0, as_it_is - saved_bytes))
            evicted = recomputed_quickly(graph, options, pool + saved_bytes)
            return evicted + worthwhile.seconds_for(pool)

        def seconds_at(place: _Place) -> float:
            saved_bytes = place.saved_bytes // self._num_devices
            return min(seconds_in(pool, saved_bytes) for pool in pools)

        return at_once(seconds_at, places)

    def _search_at(self, saved_bytes: int) -> BudgetSearch | None:
        if saved_bytes not in self._searches:
            self._searches[saved_bytes] = self._search_of(self._plan_at(saved_bytes))
        return self._searches[saved_bytes]

    def _plan_at(self, saved_bytes: int) -> LoopsOfProgram:
        pairs = self._loops.pairs
        assert pairs is not None, "there are places only on a path of pairs"
        return pairs.plan(saved_bytes)[0]


def _is_faster(measured: Measured, alone: PlannedLoops | None) -> bool:
    """Whether a plan of both is faster than loops alone, by their executables; without
    loops that keep the budget alone it is."""
    if alone is None:
        return True
    seconds = measured.executable_seconds
    return seconds is not None and seconds < alone.executable_seconds
