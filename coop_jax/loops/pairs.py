"""Pairs: a loop with the later loop that reads what it stacks, one entry per iteration."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar
from coop_jax.loops.bodies import has_bodies
from coop_jax.loops.loop import Loop
from coop_jax.trace.costs import whole_bytes
from coop_jax.trace.program import Program, consumers_of
from coop_jax.trace.shard_types import mesh_of_shards


@dataclasses.dataclass(frozen=True, eq=False)
class LoopPair:
    """A forward loop and the backward loop that reads its residuals.

    Attributes:
        forward, backward: the two loops.
        forward_index, backward_index: their places among the program's equations.
        residuals: the stacks, by their number among those that `forward` writes, which
            `backward` alone reads, and only entry by entry.
    """

    forward: Loop
    backward: Loop
    forward_index: int
    backward_index: int
    residuals: frozenset[int]

    @property
    def length(self) -> int:
        """The number of iterations."""
        return self.forward.length

    @property
    def residual_bytes(self) -> int:
        """Bytes of the residuals as they are written."""
        return sum(whole_bytes(self.forward.stacks_written[r].aval) for r in self.residuals)

    @property
    def may_be_divided(self) -> bool:
        """Whether its iterations may be loops of their own, which write into stacks of
        zeros: there are none of random keys, and none whose axes are explicit."""
        return not any(
            _compat.is_extended(stack.aval) or _is_explicit(stack.aval)
            for loop in (self.forward, self.backward)
            for stack in loop.stacks_written
        )


def _is_explicit(aval: Any) -> bool:
    return _compat.has_explicit_sharding(aval) and mesh_of_shards(aval) is None


def find_pairs(program: Program) -> list[LoopPair]:
    """The pairs of loops of a program, in its order; every loop is in one pair at most."""
    consumers = consumers_of(program)
    loops = {i: Loop.of(eqn) for i, eqn in enumerate(program.eqns) if is_plannable(eqn)}
    pairs = []
    for index in list(loops):
        pair = _pair_of(loops, index, consumers) if index in loops else None
        if pair is not None:
            pairs.append(pair)
            del loops[index], loops[pair.backward_index]
    return pairs


def _pair_of(
    loops: dict[int, Loop], index: int, consumers: dict[Any, list[int]]
) -> LoopPair | None:
    """The pair of a forward loop with the loop that reads most of the bytes that it stacks
    for one reader; None if there is none.

    Arguments:
        loops: by place, those that are in no pair yet.
        index: the place of the forward loop.
        consumers: from `program.consumers_of`.
    """
    forward = loops[index]
    bytes_read: collections.Counter[int] = collections.Counter()
    residuals: dict[int, list[int]] = collections.defaultdict(list)
    for number, stack in enumerate(forward.stacks_written):
        of_stack = set(consumers.get(stack, ()))
        if isinstance(stack, DropVar) or len(of_stack) != 1:
            continue
        (reader,) = of_stack
        backward = loops.get(reader)
        if backward is None or backward.length != forward.length:
            continue
        if stack not in backward.read_whole:
            bytes_read[reader] += whole_bytes(stack.aval)
            residuals[reader].append(number)
    if not bytes_read:
        return None
    ((reader, _),) = bytes_read.most_common(1)
    return LoopPair(forward, loops[reader], index, reader, frozenset(residuals[reader]))


def is_plannable(eqn: Any) -> bool:
    """Whether the equation is a loop whose iterations may be planned."""
    return eqn.primitive.name == "scan" and has_bodies(eqn)
