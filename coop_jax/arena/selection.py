"""Selection: the idle live-range intervals that values spend in the arena.

An idle interval is the part of a live range between two uses. A value that is made long
before it is read can lie in the arena meanwhile, instead of in a buffer of XLA. The arena
takes its bytes during the whole step, whether it holds values or not, so the intervals have
to be chosen together: as much memory in the arena as possible, while the live bytes outside
never exceed the bytes that the arena leaves. An interval costs two copies, so it has to be
long, and all copies together may take a small part of the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from coop_jax.base import _compat
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.live_ranges import Lifetimes
from coop_jax.targets import Target

# An idle interval is worth two copies if it lasts this many times as long as they take.
_WORTH = 5
# All copies of a step, as a part of its modelled time, which on CPU is less than the time
# it takes. A step whose arena is allocated once also touches less fresh memory: measured
# step times with and without an arena are in `examples/results/arena_table_cpu.md`.
_MOST_COPYING = 0.1
# The part by which arena and live bytes outside may exceed the maximum of live bytes.
_SLACK = 0.02
# Smaller values stay in XLA's buffers: each costs a call's bookkeeping, and saves nothing.
_LEAST_BYTES = 16 * 1024
# Types of which XLA packs several elements into a byte, and the one without bytes.
_PACKED = frozenset("float0 float4_e2m1fn int1 int2 int4 uint1 uint2 uint4".split())
# Sizes of the arena that are tried are multiples of one over this number of the maximum of
# live bytes, from nine tenths of it downwards.
_NUM_SIZES = 20


@dataclasses.dataclass(frozen=True, slots=True)
class IdleInterval:
    """An idle interval of a live range: from after one use of a value to right before the
    next.

    Attributes:
        tensor: the value's index in the graph.
        num_bytes: its size in bytes.
        after: number of the execution that makes or reads it before.
        until: number of the execution that reads it next.
    """

    tensor: int
    num_bytes: int
    after: int
    until: int


def choose_idle_intervals(
    graph: StepGraph, lives: Lifetimes, target: Target
) -> list[IdleInterval]:
    """The idle intervals that fill the largest arena which costs (nearly) no memory.

    Arguments:
        graph: the step's graph.
        lives: the live ranges of the schedule.
        target: the device, whose bandwidth gives the time of a copy.

    Returns:
        Idle intervals in the order of their beginning; none if none is worth its copies.
    """
    live = lives.live_bytes(graph.in_pool_bytes)
    if not live.any():
        return []
    seconds = graph.core.op_seconds[list(lives.operation)]
    waits = _waits(graph, lives, np.concatenate([[0.0], np.cumsum(seconds)]), target)
    budget = _MOST_COPYING * float(seconds.sum()) * target.bytes_per_second / 4
    for part in range(9 * _NUM_SIZES // 10, 0, -1):
        chosen = _fill(waits, live, int(part / _NUM_SIZES * live.max()), budget)
        if chosen:
            return sorted(chosen, key=lambda s: (s.after, s.tensor))
    return []


def can_be_stored(aval: object) -> bool:
    """Whether a custom call sees the value's bytes: not those of keys and packed types,
    and a reference is no value."""
    dtype = getattr(aval, "dtype", None)
    return (
        _compat.is_array(aval) and isinstance(dtype, np.dtype) and dtype.name not in _PACKED
    )


def _waits(
    graph: StepGraph, lives: Lifetimes, clock: np.ndarray, target: Target
) -> list[IdleInterval]:
    """Every idle interval that is worth two copies.

    Arguments:
        clock: float64[executions + 1], modelled seconds before each execution.
    """
    found = []
    for version in lives.versions:
        num_bytes = graph.in_pool_bytes[version.tensor]
        if num_bytes < _LEAST_BYTES or not can_be_stored(
            graph.tensors[version.tensor].aval
        ):
            continue
        # Each of the two copies reads and writes all bytes.
        least = _WORTH * 4 * num_bytes / target.bytes_per_second
        for after, until in zip(version.uses, version.uses[1:], strict=False):
            if until - after > 1 and clock[until] - clock[after + 1] >= least:
                found.append(IdleInterval(version.tensor, num_bytes, after, until))
    return found


def _fill(
    waits: Sequence[IdleInterval], live: np.ndarray, arena_bytes: int, copied_bytes: float
) -> list[IdleInterval] | None:
    """Idle intervals that leave no more live bytes outside than fit beside the arena.

    Where the excess over that is largest, the interval that covers most of all excess is
    put into the arena, until there is none. None if no interval helps, or if the copies
    exceed their limit.

    Arguments:
        waits: the idle intervals to choose from.
        live: int64[executions], live bytes at each execution.
        arena_bytes: the size of the arena.
        copied_bytes: the most bytes that may be stored.
    """
    excess = live - int((1 + _SLACK) * live.max()) + arena_bytes
    inside = np.zeros(len(live), np.int64)
    size = np.array([w.num_bytes for w in waits], np.int64)
    begin = np.array([w.after + 1 for w in waits], np.int64)
    end = np.array([w.until for w in waits], np.int64)
    free = np.ones(len(waits), bool)
    chosen: list[IdleInterval] = []
    copied = 0
    while excess[worst := int(np.argmax(excess))] > 0:
        area = np.concatenate([[0], np.cumsum(np.maximum(excess, 0))])
        candidates = np.flatnonzero(free & (begin <= worst) & (worst < end))
        score = area[end[candidates]] - area[begin[candidates]]
        for k in candidates[np.argsort(-score, kind="stable")]:
            stay = slice(begin[k], end[k])
            if inside[stay].max() + size[k] <= arena_bytes:
                break
        else:
            return None
        free[k] = False
        inside[stay] += size[k]
        excess[stay] -= size[k]
        copied += size[k]
        if copied > copied_bytes:
            return None
        chosen.append(waits[k])
    return chosen
