"""The best ways to keep values of a loop's body or to make them again, by trying them all;
for more equations than about ten, the cheapest at one price, by linear programming."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.optimize import linprog


@dataclasses.dataclass(frozen=True)
class Body:
    """What `_ext.retention_frontier` is asked about.

    Attributes:
        value_bytes: by value, the bytes that keeping it takes.
        maker: by value, the equation that makes it; -1 if it is given.
        seconds, may_run_again, operands: by equation.
        needed: the values that must be there in the end.
        seconds_per_byte: of keeping.
    """

    value_bytes: list[int]
    maker: list[int]
    seconds: list[float]
    may_run_again: list[bool]
    operands: list[list[int]]
    needed: list[int]
    seconds_per_byte: float

    def arrays(self) -> dict[str, Any]:
        """The arguments of `_ext.retention_frontier`."""
        ends = itertools.accumulate(map(len, self.operands), initial=0)
        return {
            "value_bytes": np.array(self.value_bytes, np.int64),
            "value_maker": np.array(self.maker, np.int64),
            "equation_seconds": np.array(self.seconds, np.float64),
            "equation_may_run_again": np.array(self.may_run_again, bool),
            "operands_ptr": np.array(list(ends), np.int64),
            "operands": np.array(list(itertools.chain(*self.operands)), np.int64),
            "needed": np.array(self.needed, np.int64),
            "seconds_per_byte": self.seconds_per_byte,
        }

    def kept(self, runs: Iterable[int]) -> frozenset[int]:
        """What has to be kept if these equations run again."""
        runs = frozenset(runs)
        there = {*self.needed, *(v for run in runs for v in self.operands[run])}
        return frozenset(v for v in there if self.maker[v] not in runs)

    def cost(self, runs: Iterable[int]) -> tuple[int, Fraction]:
        """Bytes and, without rounding, seconds if these equations run again."""
        size = sum(self.value_bytes[v] for v in self.kept(runs))
        again = sum(Fraction(self.seconds[run]) for run in runs)
        return size, again + size * Fraction(self.seconds_per_byte)


def corners(body: Body) -> list[frozenset[int]]:
    """What runs again at the corners of the lower convex hull of bytes and seconds, from
    the least time to the fewest bytes; of equal points, the choice that runs least."""
    best: dict[tuple[int, Fraction], frozenset[int]] = {}
    for runs in _choices(body):  # with fewer equations first
        best.setdefault(body.cost(runs), runs)
    hull: list[tuple[int, Fraction]] = []
    for point in sorted(best, key=lambda point: (point[1], point[0])):
        if hull and point[0] >= hull[-1][0]:
            continue
        while len(hull) > 1 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    return [best[point] for point in hull]


def least_cost(body: Body, byte_price: float) -> float:
    """Seconds and priced bytes of the cheapest choice.

    Between 0 and 1: whether a value is kept, whether an equation runs again. What is needed
    is kept or made, and so is what an equation reads that runs. These rows are of the kind
    of which a vertex has whole numbers.
    """
    num_values, num_equations = len(body.value_bytes), len(body.seconds)
    rows, limits = [], []

    def must_be_there(value: int, reader: int | None) -> None:
        row = np.zeros(num_values + num_equations)
        row[value] = -1
        maker = body.maker[value]
        if maker >= 0:
            row[num_values + maker] -= 1
        if reader is not None:
            row[num_values + reader] += 1
        rows.append(row)
        limits.append(-1 if reader is None else 0)

    for value in body.needed:
        must_be_there(value, None)
    for equation, operands in enumerate(body.operands):
        for value in operands:
            must_be_there(value, equation)
    price = byte_price + body.seconds_per_byte
    found = linprog(
        [*(price * size for size in body.value_bytes), *body.seconds],
        np.array(rows) if rows else None,
        limits or None,
        bounds=[(0, 1)] * num_values + [(0, int(may)) for may in body.may_run_again],
    )
    assert found.success, found.message
    return found.fun


def _choices(body: Body) -> Iterator[frozenset[int]]:
    may_run = [i for i, may in enumerate(body.may_run_again) if may]
    for count in range(len(may_run) + 1):
        yield from map(frozenset, itertools.combinations(may_run, count))


def _slope(more: tuple[int, Fraction], less: tuple[int, Fraction]) -> Fraction:
    return (less[1] - more[1]) / (more[0] - less[0])
