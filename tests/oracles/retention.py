"""The best ways to keep values of a loop's body or to make them again, by trying them all;
for more equations than about ten, the cheapest at one price, by linear programming."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from core.bodies import Body
from scipy.optimize import linprog


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
