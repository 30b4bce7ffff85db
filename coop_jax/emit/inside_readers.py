"""Inside readers: cheap values that late readers make again for themselves.

An evicted value can come back in two ways: made again into a buffer, by a kernel that
stores it, or inside of each of its readers, where XLA fuses it: nothing is stored and no
kernel is added. A schedule has the first way alone. Here the step is rewritten for the
second: of the values alive at its peak the fewest bytes are kept from which fusible
equations make all others, and what is read after the peak is made again there. The
schedule is then planned on that program.

Which values to keep is a minimum cut between the equations that are not fusible and the
readers after the peak, as in PyTorch's partitioner of forward and backward graphs
(torch/_functorch/partitioners.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_matrix

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.emit.fence import fence_equation
from coop_jax.emit.rewrite import RECOMPUTE_SCOPE
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again

# SciPy's flows are 32-bit; all bytes together are scaled to half of this.
_UNBOUNDED = 2**30


@dataclasses.dataclass(frozen=True)
class InsideReaders:
    """What is kept until after a point of a program; what else is read there is made again.

    Attributes:
        after: the index of the last equation before the point.
        kept: the values that are kept for what is made again.
    """

    after: int
    kept: tuple[Any, ...]


def inside_readers(program: Program, stored: StoredValues) -> InsideReaders | None:
    """The fewest bytes to keep at the peak of a program; None if nothing is made again.

    Arguments:
        program: the step.
        stored: what XLA stores of it.
    """
    after = _peak(program, stored)
    early = {v: i for i, eqn in enumerate(program.eqns[: after + 1]) for v in writes(eqn)}
    found = InsideReaders(after, _minimum_cut(program, stored, after, early))
    return found if made_again(program, found) else None


def made_again(program: Program, inside: InsideReaders) -> tuple[int, ...]:
    """The equations that are made again, by index, in the program's order.

    A value that cannot be made of those kept is read as it is.
    """
    kept = frozenset(inside.kept)
    makers = {
        v: i for i, eqn in enumerate(program.eqns[: inside.after + 1]) for v in writes(eqn)
    }
    reachable = _fusible_from(program, inside, kept, makers)
    todo = [v for v in _read_late(program, inside.after, makers) if v in reachable - kept]
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
    again = made_again(program, inside)
    writer = _Writer(program, inside, again)
    for index in range(inside.after + 1, len(program.eqns)):
        writer.write(index)
    return dataclasses.replace(program, eqns=tuple(writer.eqns))


class _Writer:
    """The equations written so far, with those made again before their first readers."""

    def __init__(
        self, program: Program, inside: InsideReaders, again: tuple[int, ...]
    ) -> None:
        self.eqns: list[Any] = list(program.eqns[: inside.after + 1])
        self._program = program
        self._kept = frozenset(inside.kept)
        self._version: dict[Any, Any] = {}  # Of what was made again, for late readers.
        self._fenced: dict[Any, Any] = {}  # Of what is kept, for what is made again.
        self._late: set[Any] = set()
        self._maker = {v: i for i in again for v in writes(program.eqns[i])}

    def write(self, index: int) -> None:
        """An equation after the point, and before it what it is the first to need."""
        eqn = self._program.eqns[index]
        needed = sorted(self._needed(reads(eqn)))
        if needed:
            self._fence(needed, eqn)
        for maker in needed:
            self._make_again(maker)
        self.eqns.append(_on(eqn, self._version))
        self._late.update(writes(eqn))

    def _needed(self, values: Iterable[Any]) -> set[int]:
        """The equations to make again for some values, that were not yet."""
        found: set[int] = set()
        todo = list(values)
        while todo:
            v = todo.pop()
            maker = self._maker.get(v)
            if maker is None or v in self._version or v in self._kept or maker in found:
                continue
            found.add(maker)
            todo += reads(self._program.eqns[maker])
        return found

    def _fence(self, needed: Iterable[int], reader: Any) -> None:
        operands = (v for i in needed for v in reads(self._program.eqns[i]))
        new = [
            v for v in dict.fromkeys(operands) if v in self._kept and v not in self._fenced
        ]
        if not new:
            return
        before = new + [v for v in reads(reader) if v in self._late][:1]
        after = [_compat.new_var(v.aval) for v in before]
        # Fences of a schedule are numbered from 0.
        self.eqns.append(fence_equation(before, after, -1 - len(self._fenced)))
        self._fenced.update(zip(new, after, strict=False))

    def _make_again(self, index: int) -> None:
        eqn = _on(self._program.eqns[index], {**self._version, **self._fenced})
        results = [_compat.new_var(v.aval) for v in eqn.outvars]
        made = writes(self._program.eqns[index])
        old = self._program.eqns[index].outvars
        self._version.update(
            (v, new)
            for v, new in zip(old, results, strict=True)
            if v in made and v not in self._kept
        )
        self.eqns.append(
            _compat.with_name_scope(eqn.replace(outvars=results), RECOMPUTE_SCOPE)
        )


def _on(eqn: Any, version: Mapping[Any, Any]) -> Any:
    """An equation that reads other versions of its operands."""
    operands = [v if isinstance(v, Literal) else version.get(v, v) for v in eqn.invars]
    return eqn.replace(invars=operands)


def _peak(program: Program, stored: StoredValues) -> int:
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


def _read_late(program: Program, after: int, early: Mapping[Any, int]) -> set[Any]:
    """The values made before a point that equations after it read."""
    return {v for eqn in program.eqns[after + 1 :] for v in reads(eqn) if v in early}


def _fusible_from(
    program: Program,
    inside: InsideReaders,
    kept: Collection[Any],
    makers: Mapping[Any, int],
) -> frozenset[Any]:
    """The values before the point that fusible equations make of those kept and of the
    program's inputs alone."""
    found = set(kept)
    for eqn in program.eqns[: inside.after + 1]:
        if _is_cheap(eqn) and all(v in found for v in reads(eqn) if v in makers):
            found.update(writes(eqn))
    return frozenset(found)


def _is_cheap(eqn: Any) -> bool:
    return is_fusible(eqn) and may_run_again(eqn)


def _minimum_cut(
    program: Program, stored: StoredValues, after: int, early: Mapping[Any, int]
) -> tuple[Any, ...]:
    """The values of fewest bytes from which fusible equations make all that is read late;
    of equal ones those that are nearest to the readers.

    Every value has an edge of its bytes from its node 2k to 2k + 1. What cannot be made
    again is the source's, what is read late the sink's.
    """
    values = list(early)
    number = {v: k for k, v in enumerate(values)}
    source, sink = 2 * len(values), 2 * len(values) + 1
    results = {v for v in program.outvars if not isinstance(v, Literal)}
    sizes = [0 if v in results else stored.bytes_of(v) for v in values]
    unit = 1 + sum(sizes) // (_UNBOUNDED // 2)
    edges: dict[tuple[int, int], int] = {}
    for k, v in enumerate(values):
        # A result is there in any case.
        edges[2 * k, 2 * k + 1] = 0 if v in results else max(1, sizes[k] // unit)
        eqn = program.eqns[early[v]]
        if not _is_cheap(eqn):
            edges[source, 2 * k] = _UNBOUNDED
            continue
        for operand in reads(eqn):
            if operand in number:
                edges[2 * number[operand] + 1, 2 * k] = _UNBOUNDED
    for v in _read_late(program, after, early):
        edges[2 * number[v] + 1, sink] = _UNBOUNDED
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    capacities = np.array(list(edges.values()), np.int32)
    graph = csr_matrix((capacities, (rows, columns)), shape=(sink + 1, sink + 1))
    left = graph - csgraph.maximum_flow(graph, source, sink).flow
    left.data = (left.data > 0).astype(np.int32)
    left.eliminate_zeros()
    reaching = csgraph.breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    near = set(reaching.tolist())
    return tuple(v for k, v in enumerate(values) if 2 * k + 1 in near and 2 * k not in near)
