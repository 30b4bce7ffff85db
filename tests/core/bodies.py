"""Bodies of loops as arrays, whose values may be kept or made again."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np


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


def random_body(seed: int, most_equations: int) -> Body:
    """Small whole numbers, so that there are ties, and sums are exact."""
    choose = random.Random(seed)
    maker = [-1] * choose.randint(1, 3)
    body = Body([], maker, [], [], [], [], choose.choice([0.25, 0.5, 1.0]))
    for equation in range(choose.randint(0, most_equations)):
        near = maker if choose.random() < 0.2 else maker[-4:]
        first = len(maker) - len(near)
        count = choose.randint(0, 3)
        operands = [first + choose.randrange(len(near)) for _ in range(count)]
        body.operands.append(operands)
        body.seconds.append(float(choose.randint(0, 9)))
        body.may_run_again.append(choose.random() < 0.9)
        maker += [equation] * choose.choice([0, 1, 1, 1, 1, 1, 2])
    body.value_bytes.extend(choose.randint(0, 9) for _ in maker)
    body.needed.extend(v for v in range(len(maker)) if choose.random() < 0.3)
    return body
