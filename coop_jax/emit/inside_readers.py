"""Inside readers: cheap values that late readers make again for themselves.

An evicted value can come back in two ways: made again into a buffer, by a kernel that
stores it, or inside of each of its readers, where XLA fuses it: nothing is stored and no
kernel is added. A schedule has the first way alone. Here the step is rewritten for the
second: of the values alive at its peak the fewest bytes are kept from which fusible
equations make all others, and what is read after the peak is made again there. The
schedule is then planned on that program.

Which values to keep is a minimum cut (`emit.retention_cut`) between the equations that are
not fusible and the readers after the peak.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.emit.late_writer import LateWriter
from coop_jax.emit.retention_cut import minimum_cut, read_late
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again


@dataclasses.dataclass(frozen=True)
class InsideReaders:
    """What is kept until after a point of a program; what else is read there is made again.

    Attributes:
        after: the index of the last equation before the point. With layers the last one
            of the forward pass, as far as is known.
        kept: the values that are kept for what is made again.
        layers: the last equations of layers that run again as those under
            `jax.checkpoint` do, products included and each in one stretch, but for the last
            layer, which follows them; empty: fusible work alone is made again, each value
            where it is read.
    """

    after: int
    kept: tuple[Any, ...]
    layers: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """The index of the last equation of what may be made again."""
        return self.layers[-1] if self.layers else self.after


def inside_readers(program: Program, stored: StoredValues) -> InsideReaders | None:
    """The fewest bytes to keep at the peak of a program; None if nothing is made again.

    Arguments:
        program: the step.
        stored: what XLA stores of it.
    """
    after = peak_of(program, stored)

    def price(index: int) -> float:
        return 0.0 if is_cheap(program.eqns[index]) else math.inf

    found = InsideReaders(after, minimum_cut(program, stored, after, price))
    return found if made_again(program, found) else None


def made_again(program: Program, inside: InsideReaders) -> tuple[int, ...]:
    """The equations that are made again, by index, in the program's order.

    A value that cannot be made of those kept is read as it is.
    """
    kept = frozenset(inside.kept)
    makers = {
        v: i for i, eqn in enumerate(program.eqns[: inside.end + 1]) for v in writes(eqn)
    }
    reachable = _can_be_made(program, inside, kept, makers)
    todo = [v for v in read_late(program, inside.end, makers) if v in reachable - kept]
    found: set[int] = set()
    while todo:
        index = makers[todo.pop()]
        if index in found:
            continue
        found.add(index)
        for v in reads(program.eqns[index]):
            if v in makers and v not in kept:
                todo.append(v)
    return tuple(sorted(found))


def with_inside_readers(program: Program, inside: InsideReaders) -> Program:
    """The program whose late readers make values again from those kept.

    What is kept passes a fence with a value of the first reader that needs it: so XLA does
    not merge the second computation with the first, nor begin it early.
    """
    return dataclasses.replace(program, eqns=tuple(written(program, inside).eqns))


def written(program: Program, inside: InsideReaders) -> LateWriter:
    """The writer of `with_inside_readers`, which knows what was made again as what."""
    writer = LateWriter(
        *(program, inside.end, inside.kept, made_again(program, inside)),
        *(inside.layers, inside.after),
    )
    for index in range(inside.end + 1, len(program.eqns)):
        writer.write(index)
    return writer


def peak_of(program: Program, stored: StoredValues) -> int:
    """The equation at which most bytes of stored values are alive, in the program's order.

    Arguments and results, which are there in any case, do not count.
    """
    last = {v: i for i, eqn in enumerate(program.eqns) for v in reads(eqn)}
    results = {v for v in program.outvars if not isinstance(v, Literal)}
    change = np.zeros(len(program.eqns) + 1)
    for index, eqn in enumerate(program.eqns):
        for v in writes(eqn):
            if v in stored.stored_bytes and v in last and v not in results:
                change[index] += stored.stored_bytes[v]
                change[last[v] + 1] -= stored.stored_bytes[v]
    return int(np.cumsum(change).argmax())


def _can_be_made(
    program: Program,
    inside: InsideReaders,
    kept: Collection[Any],
    makers: Mapping[Any, int],
) -> frozenset[Any]:
    """The values before the point that can be made again of those kept and of the program's
    inputs alone."""
    found = set(kept)
    for eqn in program.eqns[: inside.end + 1]:
        runs_again = may_run_again(eqn) if inside.layers else is_cheap(eqn)
        if runs_again and all(v in found for v in reads(eqn) if v in makers):
            found.update(writes(eqn))
    return frozenset(found)


def is_cheap(eqn: Any) -> bool:
    return is_fusible(eqn) and may_run_again(eqn)
