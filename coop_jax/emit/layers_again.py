"""Layers again: what is kept of a forward pass if each layer may run again, as by hand.

`jax.checkpoint` around the layers of a model keeps what enters a layer, and of its inside
what a policy says; on the way back the layer runs again, in one stretch. The planner's
schedules have prices for every operation alone, and a fence for every group of
recomputations: such a stretch fuses as the forward pass does, and they do not. So that no
policy is better than every plan, here is the choice that contains those of the policies:
the layers are the blocks of equations that repeat, what passes from one to the next is
kept, and so is what XLA stores inside of them and is worth its bytes at a price, by a
minimum cut. All else of a layer is made again before the first late reader that needs some
of it (`emit.late_writer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.base.sweep import bytes_over_time
from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import (
    InsideReaders,
    is_cheap,
    made_again,
    peak_of,
    written,
)
from coop_jax.emit.retention_cut import minimum_cut
from coop_jax.graph.scatter_add import accumulations
from coop_jax.graph.stored_values import StoredValues
from coop_jax.targets import Target
from coop_jax.trace.costs import is_fusible, seconds_again
from coop_jax.trace.forward_pass import (
    derived_from_inputs,
    end_of_forward_pass,
    forward_pass,
)
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again

# The bytes that pass are as few as the fewest up to this multiple of them.
_AS_LITTLE = 1.02


class Layers:
    """The forward pass of a step, with the layers that repeat in it.

    Arguments:
        program: the step.
        stored: what XLA stores of it.
        target: the device, whose rates are the prices of what runs again.

    Attributes:
        after: the index of the last equation of the forward pass.
        idle_bytes: of what the forward pass makes and the way back reads.
        step_seconds: modelled time of all equations.
    """

    def __init__(self, program: Program, stored: StoredValues, target: Target) -> None:
        self.program = program
        self._stored = stored
        self._target = target
        peak = peak_of(program, stored)
        self.after = end_of_forward_pass(program.eqns, peak)
        early = program.eqns[: self.after + 1]
        self._made = {v: i for i, eqn in enumerate(early) for v in writes(eqn)}
        forward = forward_pass(program.eqns, self.after)
        last = {v: i for i in forward for v in reads(program.eqns[i])}
        self._last = {v: last.get(v, i) for v, i in self._made.items()}
        late = {v for eqn in program.eqns[self.after + 1 :] for v in reads(eqn)}
        count = len(early)
        self.idle_bytes = sum(
            stored.stored_bytes.get(v, 0) for v in self._made if v in late
        )
        all_seconds = (seconds_again(eqn, target) for eqn in program.eqns)
        self.step_seconds = math.fsum(all_seconds)
        derived = derived_from_inputs(early)
        lives = [
            (made, min(self._last[v], count) - 1, stored.bytes_of(v))
            for v, made in self._made.items()
            if v not in derived
        ]
        first, end, size = np.array(lives, np.int64).reshape(-1, 3).T
        self._carried = bytes_over_time(first, end, size, count)

    def blocks(self) -> tuple[int, ...]:
        """The last equations of what repeats in the forward pass: the layers of an encoder
        and those of a decoder, say; none where nothing repeats."""
        kinds: dict[Any, int] = {}
        early = self.program.eqns[: self.after + 1]
        kind = np.array([kinds.setdefault(_kind(eqn), len(kinds)) for eqn in early])
        found: list[int] = []
        todo = [(0, len(early))]
        while todo:
            begin, end = todo.pop()
            run = _longest_repetition(kind[begin:end])
            if run is None:
                continue
            start, covered, period = run
            start += begin
            if self._is_layer(start, period):
                found += self._ends(start, covered, period)
            todo += [(begin, start), (start + covered, end)]
        return tuple(sorted(found))

    def _is_layer(self, start: int, period: int) -> bool:
        """Whether what repeats has a kernel, and the second time reads what the first made:
        the products of queries, keys and values are no layers."""
        eqns = self.program.eqns[start : start + 2 * period]
        made = {v for eqn in eqns[:period] for v in writes(eqn)}
        follows = any(v in made for eqn in eqns[period:] for v in reads(eqn))
        return follows and any(map(_has_a_kernel, eqns))

    def _ends(self, start: int, covered: int, period: int) -> list[int]:
        """Where the repetitions end, shifted to where least passes from one to the next.

        The median: into the first of them an argument may pass, which is no bytes here.
        """
        ends = np.arange(start, start + covered, period)
        shifted = [ends + shift for shift in range(period)]
        shifted = [some[some < start + covered] for some in shifted]
        passing = [np.median(self._carried[some]) for some in shifted]
        narrow = [
            some
            for some, size in zip(shifted, passing, strict=True)
            if size <= _AS_LITTLE * min(passing)
        ]
        # The last of them ends nearest to where nothing repeats any more.
        return max(narrow, key=lambda some: some[-1]).tolist()

    def passing(self, boundaries: Sequence[int]) -> tuple[Any, ...]:
        """What passes a boundary and is not made by fusible equations of what does.

        Behind the last boundary the way back may have begun before the point at which most
        is alive: there only that passes whose counterpart passes the boundary before.
        """
        ends = np.array(boundaries, np.int64)
        eqns = self.program.eqns

        def passes(v: Any) -> bool:
            at = int(np.searchsorted(ends, self._made[v]))
            if at == len(ends) or self._last[v] <= ends[at]:
                return False
            if at == 0 or at + 1 < len(ends):
                return True
            before = self._made[v] - int(ends[at] - ends[at - 1])
            return any(self._last[w] > ends[at - 1] for w in writes(eqns[before]))

        found: dict[Any, None] = {}
        derived: set[Any] = set()
        for eqn in self.program.eqns[: self.after + 1]:
            known = (v in derived or v in found or v not in self._made for v in reads(eqn))
            if is_cheap(eqn) and all(known):
                derived.update(writes(eqn))
            else:
                found.update((v, None) for v in writes(eqn) if passes(v))
        narrow = (w for v in found for w in self._narrower(v, derived))
        return tuple(dict.fromkeys(narrow))

    def _narrower(self, v: Any, derived: Container[Any]) -> list[Any]:
        """The value, or what fusible equations make it of, if that is fewer bytes.

        Of a bias by position that is added in all layers that is what is broadcast to the
        batch.
        """
        found = {v}
        todo = [v]
        while todo:
            eqn = self.program.eqns[self._made[w := todo.pop()]]
            operands = {u for u in reads(eqn) if u in self._made and u not in derived}
            needed_bytes = sum(map(self._stored.bytes_of, operands - found))
            if is_cheap(eqn) and operands and needed_bytes <= self._stored.bytes_of(w):
                found.remove(w)
                todo += operands - found
                found |= operands
        needed_bytes = sum(map(self._stored.bytes_of, found))
        fewer = needed_bytes < self._stored.bytes_of(v)
        return sorted(found, key=self._made.__getitem__) if fewer else [v]

    def priced(self, boundaries: Sequence[int]) -> tuple[int, ...]:
        """The equations of the layers that take time to run again, by index."""
        eqns = self.program.eqns[: boundaries[-1] + 1]
        return tuple(
            index
            for index, eqn in enumerate(eqns)
            if may_run_again(eqn) and not is_fusible(eqn)
        )

    def kept(
        self, boundaries: Sequence[int], worth: Callable[[int], float]
    ) -> InsideReaders:
        """What passes the boundaries, and the cheapest choice of what else is kept.

        What follows the last boundary is left as written: the last layer too, where its end
        is not among them.

        Arguments:
            boundaries: the equations that layers end with.
            worth: the bytes that a second of an equation's recomputation is worth, by the
                equation's index.
        """
        passing = self.passing(boundaries)

        def again(index: int) -> float:
            eqn = self.program.eqns[index]
            if not may_run_again(eqn):
                return math.inf
            if is_fusible(eqn):
                return 0.0
            return seconds_again(eqn, self._target) * worth(index)

        def to_store(v: Any) -> float:
            eqn = self.program.eqns[self._made[v]]
            is_stored = v in self._stored.stored_bytes or _has_a_kernel(eqn)
            return 0.0 if is_stored or not may_run_again(eqn) else math.inf

        after = boundaries[-1]
        values = minimum_cut(
            *(self.program, self._stored, after, again),
            anyway=frozenset(passing),
            to_store=to_store,
        )
        return InsideReaders(self.after, (*passing, *values), tuple(boundaries))

    def seconds(self, inside: InsideReaders) -> float:
        """Modelled time of what runs again."""
        again = made_again(self.program, inside)
        return math.fsum(seconds_again(self.program.eqns[i], self._target) for i in again)

    def live_bytes(self, inside: InsideReaders) -> int:
        """The most bytes that the step keeps alive, as far as the stored values of the step
        as written tell."""
        writer = written(self.program, inside)
        kept = frozenset(inside.kept)
        results = {v for v in self.program.outvars if not isinstance(v, Literal)}
        root: dict[Any, Any] = {}  # Of what passed fences.
        first: dict[Any, int] = {}
        last: dict[Any, int] = {}
        sums = dict(accumulations(self.program).values())
        for at, eqn in enumerate(writer.eqns):
            last.update((root.get(v, v), at) for v in reads(eqn))
            for v in writes(eqn):
                if v in sums:  # It is written over what the scatter is added to.
                    last[root.get(sums[v], sums[v])] = at - 1
            if eqn.primitive is fence_p:
                pairs = zip(eqn.outvars, eqn.invars, strict=True)
                root.update((new, root.get(v, v)) for new, v in pairs)
            else:
                first.update(dict.fromkeys(writes(eqn), at))
        lives = []
        for v, at in first.items():
            made_as = writer.origin.get(v, v)
            is_stored = made_as in self._stored.stored_bytes or made_as in kept
            if is_stored and v in last and made_as not in results:
                lives.append((at, last[v], self._stored.bytes_of(made_as)))
        begin, end, size = np.array(lives, np.int64).reshape(-1, 3).T
        return int(bytes_over_time(begin, end, size, len(writer.eqns)).max(initial=0))


def _has_a_kernel(eqn: Any) -> bool:
    """Whether XLA computes an equation by a kernel of its own, and stores its result.

    A reduction is computed with what it reads and with what reads it: kept, it tears the
    fusion that it is part of, unless XLA stores it in the step as written.
    """
    return not is_fusible(eqn) and not eqn.primitive.name.startswith("reduce")


def _kind(eqn: Any) -> Any:
    """What is equal for equations that do the same with other values."""
    return eqn.primitive.name, tuple(str(v.aval) for v in eqn.outvars)


def _longest_repetition(kind: np.ndarray) -> tuple[int, int, int] | None:
    """What repeats most of a sequence: where it begins, its length and its period."""
    best = 0, 0, 0
    for period in range(1, len(kind) // 2 + 1):
        start, length = _longest_run(kind[:-period] == kind[period:])
        if length >= period and length + period > best[1]:
            best = start, length + period, period
    return best if best[1] else None


def _longest_run(flags: np.ndarray) -> tuple[int, int]:
    """Where the longest run of true flags begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    if not len(edges):
        return 0, 0
    starts, ends = edges[::2], edges[1::2]
    longest = int((ends - starts).argmax())
    return int(starts[longest]), int((ends - starts)[longest])
