"""Late writer: the second half of a program, with values made again before their readers.

What is kept passes a fence before anything is made of it again, together with a value of
the way back: so XLA neither merges the second computation with the first nor begins it
early. Where whole layers run again, four things more are needed for that:

* arguments pass the fence, too: what is made of them alone, as the casts of weights, would
  be merged with the first computation, and kept in its place;
* the value of the way back has to be one. A reader's operand may be made of arguments and
  constants alone, as the zeros that a gradient is scattered into: XLA has it at once;
* it is an operand of the reader where possible. The product that was written last may be
  the gradient of a weight, whose layout a fence would hold;
* from there on the value behind the fence is read. So the way back of the layer is behind
  it, too, as it is under `jax.checkpoint`. Where it is beside the fence, the best of the
  orders that XLA compares can leave gradients of weights to the end of the step, with what
  they are made of.
"""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.emit.fence import fence_equation
from coop_jax.emit.layer_membership import layer_membership
from coop_jax.emit.layer_turns import LayerTurns
from coop_jax.emit.rewrite import RECOMPUTE_SCOPE
from coop_jax.emit.segments import can_pass
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.forward_pass import forward_pass, lengths_of_paths
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.ties import behind_selections, ties


class LateWriter:
    """The equations written so far, with those made again before their first readers.

    Arguments:
        program: the step.
        after: the index of the last equation before the point.
        kept: the values that are kept for what is made again.
        again: the equations to make again, by index, in the program's order.
        layers, forward: as `layers` and `after` of `InsideReaders`.

    Attributes:
        eqns: the equations.
        origin: the value that another was made again as, by the other.
    """

    def __init__(
        self,
        program: Program,
        after: int,
        kept: Collection[Any],
        again: Iterable[int],
        layers: Sequence[int] = (),
        forward: int = 0,
    ) -> None:
        self.eqns: list[Any] = list(program.eqns[: after + 1])
        self.origin: dict[Any, Any] = {}
        self._program = program
        self._kept = frozenset(kept)
        inputs = (*program.constvars, *program.invars) if layers else ()
        self._passing = self._kept.union(v for v in inputs if can_pass(v.aval))
        self._version: dict[Any, Any] = {}  # Of what was made again, for late readers.
        self._fenced: dict[Any, Any] = {}  # Of what passed a fence, behind the last one.
        self._late: set[Any] = set()
        self._maker = {v: i for i in again for v in writes(program.eqns[i])}
        self._layers = layers
        self._tied = ties(program.eqns)
        self._layer: dict[int, int | None] = {}
        self._forward: Collection[int] = ()
        if layers:
            on_the_way = forward_pass(program.eqns, forward)
            self._forward = frozenset(on_the_way)
            indices = frozenset(self._maker.values())
            member = layer_membership(program, on_the_way, layers, indices, self._kept)
            self._layer = member
            # What the last layer alone reads is read at once.
            last = len(layers)
            self._maker = {v: i for v, i in self._maker.items() if member[i] != last}
        self._made_again: defaultdict[int | None, list[Any]] = defaultdict(list)
        for v, index in self._maker.items() if layers else ():
            self._made_again[self._layer[index]].append(v)
        self._turns = LayerTurns(self._first_late_reads(after) if layers else {})
        self._way_back = _WayBack(program.eqns, self.eqns, self._kept) if layers else None

    def write(self, index: int) -> None:
        """An equation after the point, and before it what it is the first to need."""
        eqn = self._program.eqns[index]
        needed: list[int] = []
        if index not in self._forward:
            needed = sorted(self._with_layers(self._needed(reads(eqn)), index))
        if needed:
            self._fence(needed, index)
        for maker in needed:
            self._make_again(maker)
        # Of what passed a fence one version is read from here on, by both computations.
        kept = self._fenced if self._layers else {}
        present = ChainMap(self._version, kept)
        selecting = self._selecting(index)
        if any(v in present for e in selecting for v in reads(e)):
            *selecting, eqn = selecting
            self.eqns += (_on(e, present) for e in selecting)
        self.eqns.append(_on(eqn, present))
        self._late.update(writes(eqn))
        if self._way_back is not None:
            self._way_back.advance(eqn)

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

    def _first_late_reads(self, after: int) -> dict[int, list[int]]:
        """By layer where its values that are made again are read first."""
        found: dict[int, list[int]] = {}
        seen: set[Any] = set()
        for index in range(after + 1, len(self._program.eqns)):
            if index in self._forward:
                continue
            for v in reads(self._program.eqns[index]):
                if v in self._maker and v not in seen and v not in self._kept:
                    seen.add(v)
                    layer = self._layer[self._maker[v]]
                    if layer is not None:
                        found.setdefault(layer, []).append(index)
        return found

    def _with_layers(self, needed: Set[int], reader: int) -> Set[int]:
        """With all that the layers of these equations make again, if it is their turn."""
        if not self._layers or not needed:
            return needed
        layers = {self._layer[index] for index in needed}
        begun = [i for i in layers if i is not None and self._turns.has_come(i, reader)]
        of_layers = (v for layer in begun for v in self._made_again[layer])
        return needed | self._needed(of_layers)

    def _fence(self, needed: Iterable[int], reader: int) -> None:
        operands = (v for i in needed for v in reads(self._program.eqns[i]))
        new = [
            v
            for v in dict.fromkeys(operands)
            if v in self._passing and v not in self._fenced
        ]
        if not new:
            return
        late = [v for v in reads(self._program.eqns[reader]) if v in self._late]
        passing = new + (self._way_back.of(late) if self._way_back else late[:1])
        before = [self._fenced.get(v, v) for v in passing]
        after = [_compat.new_var(v.aval) for v in before]
        # Fences of a schedule are numbered from 0.
        self.eqns.append(fence_equation(before, after, -1 - len(self._fenced)))
        # Cheap values alone begin no way back: what they wait for is read as it is.
        behind = passing if self._layers else new
        self._fenced.update(zip(behind, after, strict=False))

    def _make_again(self, index: int) -> None:
        present = ChainMap(self._fenced, self._version)
        *selecting, eqn = (_on(eqn, present) for eqn in self._selecting(index))
        self.eqns += selecting
        results = [_compat.new_var(v.aval) for v in eqn.outvars]
        made = writes(self._program.eqns[index])
        old = self._program.eqns[index].outvars
        self.origin.update(zip(results, old, strict=True))
        self._version.update(
            (v, new)
            for v, new in zip(old, results, strict=True)
            if v in made and v not in self._kept
        )
        self.eqns.append(
            _compat.with_name_scope(eqn.replace(outvars=results), RECOMPUTE_SCOPE)
        )

    def _selecting(self, index: int) -> list[Any]:
        """An equation; before it, if it compares, what selects what it compares with."""
        eqns = self._program.eqns
        if index not in self._tied:
            return [eqns[index]]
        return behind_selections(eqns, index, self._tied[index])


class _WayBack:
    """How far the way back has come: by the longest path of equations to a value."""

    def __init__(
        self, eqns: Sequence[Any], early: Iterable[Any], kept: Collection[Any]
    ) -> None:
        lengths = zip(eqns, lengths_of_paths(eqns), strict=True)
        self._depth = {v: length for eqn, length in lengths for v in writes(eqn)}
        self._front: Any = None  # The last value of the longest path that XLA stores.
        for eqn in early:
            self.advance(eqn)
        self._turn = max((self._depth[v] for v in kept), default=0)

    def advance(self, eqn: Any) -> None:
        """An equation as it was before anything was made again."""
        for v in () if is_fusible(eqn) else writes(eqn):
            if can_pass(v.aval) and self._depth[v] >= self._depth.get(self._front, 0):
                self._front = v

    def of(self, late: Iterable[Any]) -> list[Any]:
        """A value that is not there before the way back begins, if possible of these."""
        known = [v for v in late if can_pass(v.aval) and self._depth[v] > self._turn]
        found = max(known, key=self._depth.__getitem__, default=self._front)
        return [] if found is None else [found]


def _on(eqn: Any, version: Mapping[Any, Any]) -> Any:
    """An equation that reads other versions of its operands."""
    operands = [v if isinstance(v, Literal) else version.get(v, v) for v in eqn.invars]
    return eqn.replace(invars=operands)
