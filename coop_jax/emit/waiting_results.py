"""Waiting results: what a layer's second run has to wait for, so that operands are freed.

The gradient of a weight is needed at the end of the step, and the gradient of a layer's
output that it is made of is kept until it is computed. Of the orders of the instructions
that XLA:GPU compares, the best can leave such products to the end: the gradient of the
logits, say, beside all layers that run again. So the fence before a layer waits for the
results whose operands nothing else reads any more, where these are more bytes.

A transposed result waits as it is transposed: a fence holds a layout, and that of the
weight is the one in which the optimizer reads its gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from coop_jax.emit.segments import can_pass
from coop_jax.trace.costs import aval_bytes, is_fusible
from coop_jax.trace.program import reads, writes

_VIEWS = frozenset({"transpose", "reshape", "squeeze"})


class WaitingResults:
    """The results of a program's second half that wait for the next fence.

    Arguments:
        eqns: the equations of the program, in its order.
    """

    def __init__(self, eqns: Sequence[Any]) -> None:
        self._eqns = eqns
        self._readers: defaultdict[Any, list[int]] = defaultdict(list)
        for index, eqn in enumerate(eqns):
            for v in dict.fromkeys(reads(eqn)):
                self._readers[v].append(index)
        self._maker: dict[Any, int] = {}  # Of what the second half made so far.
        self._waiting: list[tuple[Any, int]] = []  # With the last reader of an operand.

    def advance(self, index: int) -> None:
        """An equation of the second half that was written."""
        eqn = self._eqns[index]
        if not is_fusible(eqn):
            operands = [v for v in reads(eqn) if v in self._maker]
            for v in writes(eqn):
                self._waiting += [
                    (self._transposed(v), self._readers[operand][-1])
                    for operand in operands
                    if aval_bytes(operand.aval) > aval_bytes(v.aval)
                ]
        self._maker.update(dict.fromkeys(writes(eqn), index))

    def before(self, index: int, way_back: Iterable[Any]) -> list[Any]:
        """The results that a fence before an equation waits for, each once in all.

        Arguments:
            way_back: what it waits for in any case: not what that is made of, too.
        """
        behind = self._behind(way_back)
        found: dict[Any, None] = {}
        further = []
        for v, end in self._waiting:
            if end >= index or v not in self._maker:
                further.append((v, end))
            elif v not in behind and can_pass(v.aval):
                found[v] = None
        self._waiting = further
        return list(found)

    def _transposed(self, v: Any) -> Any:
        """The value, or what it becomes by views alone."""
        while len(self._readers[v]) == 1:
            [reader] = self._readers[v]
            if self._eqns[reader].primitive.name not in _VIEWS:
                break
            v = self._eqns[reader].outvars[0]
        return v

    def _behind(self, values: Iterable[Any]) -> Collection[Any]:
        """Values of the second half that others are made of, these included."""
        found: set[Any] = set()
        todo = list(values)
        while todo:
            v = todo.pop()
            if v in self._maker and v not in found:
                found.add(v)
                todo += reads(self._eqns[self._maker[v]])
        return found
