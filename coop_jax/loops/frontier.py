"""Frontier: which values of an iteration to keep, from the fewest bytes to the least time.

Every forward value that the backward body needs is kept across the gap, which takes bytes
in every iteration and the time to write and to read them, or is made again, which takes the
time of its equation and needs the equation's operands. For a price of bytes in seconds, the
cheapest choice is a minimum cut: a value that is needed (1) and not made (0) cuts the edge
that stands for keeping it, an equation that is run again (1) the edge of its time. The
choices for all prices are the lower convex hull of bytes and seconds.

A value that is made again inside of a fusion that reads it is not stored: elementwise work
takes the time of its arithmetic alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from coop_jax.loops.iteration import Iteration
from coop_jax.loops.min_cut import INFINITE, Network
from coop_jax.targets import Target
from coop_jax.trace.costs import aval_bytes, seconds_again
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again

_UNITS_PER_SECOND = 10**18  # Times as integers: exact sums and comparisons.


@dataclasses.dataclass(frozen=True)
class Retained:
    """A choice of the values that an iteration keeps for the backward loop.

    Attributes:
        values: the kept forward values.
        kept_bytes: bytes per iteration.
        seconds: modelled time per iteration: recomputation, and writing and reading what
            is kept.
        recompute_seconds: modelled time of recomputation alone.
        recomputed: the equations that the backward body runs again, in order.
    """

    values: frozenset[Any]
    kept_bytes: int
    seconds: float
    recompute_seconds: float
    recomputed: tuple[Any, ...]


def frontier(iteration: Iteration, target: Target) -> list[Retained]:
    """The lower convex hull of bytes and seconds, from the least time to the fewest bytes.

    Arguments:
        iteration: the iteration.
        target: the device whose rates are the prices.
    """
    search = _Search(iteration, target)
    most_bytes, most_units = search.totals
    fastest = search.cheapest(1, most_bytes + 1)
    smallest = search.cheapest(most_units + 1, 1)
    corners = [fastest]
    for choice in (*search.between(fastest, smallest), smallest):
        if choice.kept_bytes < corners[-1].kept_bytes:
            corners.append(choice)
    return [search.retained(corner) for corner in corners]


@dataclasses.dataclass(frozen=True)
class _Choice:
    values: frozenset[Any]
    runs: frozenset[int]
    kept_bytes: int
    units: int


class _Search:
    """The cuts of one iteration."""

    def __init__(self, iteration: Iteration, target: Target) -> None:
        self._iteration = iteration
        self._bytes: dict[Any, int] = dict(iteration.bytes_if_kept)
        self._maker: dict[Any, int] = {}
        self._units: list[int | None] = []
        anyway = iteration.stacked_anyway
        for index, eqn in enumerate(iteration.forward):
            self._units.append(_units(eqn, target) if may_run_again(eqn) else None)
            for v in writes(eqn):
                self._maker[v] = index
                self._bytes[v] = 0 if v in anyway else aval_bytes(v.aval)
        self._keep_units = {
            v: int(2 * size / target.bytes_per_second * _UNITS_PER_SECOND)
            for v, size in self._bytes.items()
        }

    @property
    def totals(self) -> tuple[int, int]:
        """More bytes, and more units of time, than any choice takes."""
        units = sum(u for u in self._units if u is not None)
        return sum(self._bytes.values()), units + sum(self._keep_units.values())

    @functools.cached_property
    def _relevant(self) -> tuple[list[Any], list[int]]:
        """The values and equations from which the backward body's needs are made."""
        values = dict.fromkeys(self._iteration.needed)
        runs: dict[int, None] = {}
        for value in (queue := list(values)):
            index = self._maker.get(value)
            if index is None or self._units[index] is None or index in runs:
                continue
            runs[index] = None
            for v in reads(self._iteration.forward[index]):
                if v not in values:
                    values[v] = None
                    queue.append(v)
        return list(values), list(runs)

    def cheapest(self, byte_price: int, unit_price: int) -> _Choice:
        """The choice with the least sum of priced bytes and units of time."""
        values, runs = self._relevant
        node_of_value = {v: 2 + i for i, v in enumerate(values)}
        node_of_run = {r: 2 + len(values) + i for i, r in enumerate(runs)}
        network = Network(2 + len(values) + len(runs))
        for v in self._iteration.needed:
            network.add_edge(0, node_of_value[v], INFINITE)
        for v, node in node_of_value.items():
            price = byte_price * self._bytes[v] + unit_price * self._keep_units[v]
            network.add_edge(node, node_of_run.get(self._maker.get(v, -1), 1), price)
        for index, node in node_of_run.items():
            units = self._units[index]
            assert units is not None, "only what may run again is relevant"
            network.add_edge(node, 1, unit_price * units)
            for v in reads(self._iteration.forward[index]):
                network.add_edge(node, node_of_value[v], INFINITE)
        side = network.source_side(0, 1)
        run = frozenset(r for r, node in node_of_run.items() if node in side)
        kept = frozenset(
            v
            for v, node in node_of_value.items()
            if node in side and self._maker.get(v) not in run
        )
        return _Choice(
            kept,
            run,
            sum(self._bytes[v] for v in kept),
            sum(self._keep_units[v] for v in kept) + sum(self._units[r] or 0 for r in run),
        )

    def between(self, first: _Choice, last: _Choice) -> list[_Choice]:
        """The corners of the hull between two of its points, in order."""
        fewer = first.kept_bytes - last.kept_bytes
        longer = last.units - first.units
        if fewer <= 0 or longer <= 0:
            return []
        found = self.cheapest(longer, fewer)

        def price(choice: _Choice) -> int:
            return longer * choice.kept_bytes + fewer * choice.units

        if price(found) >= price(first):
            return []
        return [*self.between(first, found), found, *self.between(found, last)]

    def retained(self, choice: _Choice) -> Retained:
        forward = self._iteration.forward
        return Retained(
            choice.values,
            choice.kept_bytes,
            choice.units / _UNITS_PER_SECOND,
            sum(self._units[r] or 0 for r in choice.runs) / _UNITS_PER_SECOND,
            tuple(forward[r] for r in sorted(choice.runs)),
        )


def _units(eqn: Any, target: Target) -> int:
    return int(seconds_again(eqn, target) * _UNITS_PER_SECOND)
