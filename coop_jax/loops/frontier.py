"""Frontier: which values of an iteration to keep, from the fewest bytes to the least time.

Every forward value that the backward body needs is kept across the gap, which takes bytes
in every iteration and the time to write and to read them, or is made again, which takes the
time of its equation and needs the equation's operands. For a price of bytes in seconds, the
cheapest choice is a minimum cut. The choices for all prices are the lower convex hull of
bytes and seconds, which the core finds (`xla_ext/core/loops/frontier.h`).

A value that is made again inside of a fusion that reads it is not stored: elementwise work
takes the time of its arithmetic alone. What the forward body computes for the backward body
alone is not made again there: it runs there in place of the forward body, at no price.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.loops.iteration import Iteration
from coop_jax.targets import Target
from coop_jax.trace.costs import whole_bytes
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again
from coop_jax.trace.shard_types import mesh_of_operands, mesh_of_shards

_NOT_KEPT = 1 << 50  # Bytes of what cannot be kept: more than any price makes worth it.


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
    forward = iteration.forward
    value_bytes, maker = _values(iteration)
    values = list(value_bytes)
    number = {v: i for i, v in enumerate(values)}
    again = [iteration.run_again([eqn]) for eqn in forward]
    operands = [[number[v] for v in _read_by(eqns)] for eqns in again]
    seconds = [sum(iteration.seconds_again(eqn, target) for eqn in eqns) for eqns in again]
    corners = _ext.retention_frontier(
        value_bytes=_int64(value_bytes.values()),
        value_maker=_int64(maker.get(v, -1) for v in values),
        equation_seconds=np.array(seconds, np.float64),
        equation_may_run_again=np.array([may_run_again(eqn) for eqn in forward], bool),
        operands_ptr=_int64(itertools.accumulate(map(len, operands), initial=0)),
        operands=_int64(itertools.chain.from_iterable(operands)),
        needed=_int64(number[v] for v in iteration.needed),
        seconds_per_byte=_seconds_per_byte(target),
    )
    return [
        retained_of(iteration, [values[i] for i in c.kept], c.recomputed.tolist(), target)
        for c in corners
    ]


def retained_of(
    iteration: Iteration, kept: Iterable[Any], recomputed: Sequence[int], target: Target
) -> Retained:
    """A choice with its bytes and times.

    Arguments:
        iteration, target: as of `frontier`.
        kept: the kept forward values.
        recomputed: the equations that run again, by their places among the forward ones.
    """
    value_bytes, _ = _values(iteration)
    values = frozenset(kept)
    kept_bytes = sum(value_bytes[v] for v in values)
    eqns = tuple(iteration.forward[i] for i in recomputed)
    runs = iteration.run_again(eqns)
    again = math.fsum(iteration.seconds_again(eqn, target) for eqn in runs)
    return Retained(
        values=values,
        kept_bytes=kept_bytes,
        seconds=again + kept_bytes * _seconds_per_byte(target),
        recompute_seconds=again,
        recomputed=eqns,
    )


def _read_by(eqns: Sequence[Any]) -> list[Any]:
    """The values that equations read and none of them makes."""
    made = {v for eqn in eqns for v in writes(eqn)}
    return list(dict.fromkeys(v for eqn in eqns for v in reads(eqn) if v not in made))


def _seconds_per_byte(target: Target) -> float:
    """Of writing and of reading what is kept."""
    return 2 / target.bytes_per_second


def _values(iteration: Iteration) -> tuple[dict[Any, int], dict[Any, int]]:
    """The forward values with the bytes that keeping them takes, and the number of the
    equation that makes each one that the iteration is not given."""
    value_bytes, maker = dict(iteration.bytes_if_kept), {}
    anyway = iteration.stacked_anyway
    is_whole = mesh_of_operands(iteration.pair.forward.eqn) is None
    for index, eqn in enumerate(iteration.forward):
        for v in writes(eqn):
            maker[v] = index
            # There are no stacks of shards in a loop of whole arrays: what its body holds
            # in a `shard_map` is kept where it leaves that.
            is_inside = is_whole and mesh_of_shards(v.aval) is not None
            size = _NOT_KEPT if is_inside else whole_bytes(v.aval)
            value_bytes[v] = 0 if v in anyway else size
    return value_bytes, maker


def _int64(numbers: Iterable[int]) -> Any:
    return np.fromiter(numbers, np.int64)
