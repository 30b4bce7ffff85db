"""Arena layout: which values lie in the arena, between which boundaries, at which offsets.

`placement="arena"` keeps values in one contiguous buffer during long idle intervals of
their live ranges. At a boundary between two segments of the step, values whose idle
interval begins are stored, and values that the segment reads next are loaded
(`exchange.py`). Loads come before stores, so the block of a loaded value is free for a
value that the same exchange stores.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from coop_jax import _ext
from coop_jax.arena.selection import IdleInterval, choose_idle_intervals
from coop_jax.emit.segments import Segment, cut
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.targets import Target

# Bytes that may be outside of the arena longer than needed for want of a boundary, as a
# part of the maximum of live bytes: values stored too late and values loaded too early.
_TOLERANCE = 1 / 48
# The limit on the work of the search for offsets.
_PACKING_EFFORT = 20_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Stay:
    """The time between two boundaries that a value is in the arena.

    Attributes:
        tensor: the value's index in the graph.
        num_bytes: its size in bytes.
        stored_at: the boundary that stores it; boundary `k` is before segment `k`.
        loaded_at: the boundary that loads it, later than `stored_at`.
        offset: its offset in the arena, in bytes.
    """

    tensor: int
    num_bytes: int
    stored_at: int
    loaded_at: int
    offset: int


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaPlan:
    """The contents of a step's arena.

    Attributes:
        arena_bytes: the size of the arena.
        stays: the values in it, with boundaries and offsets, in the order of `stored_at`.
        outside_bytes: the maximum of the live bytes outside of the arena.
    """

    arena_bytes: int
    stays: tuple[Stay, ...]
    outside_bytes: int

    def stored_at(self, boundary: int) -> list[Stay]:
        return [stay for stay in self.stays if stay.stored_at == boundary]

    def loaded_at(self, boundary: int) -> list[Stay]:
        return [stay for stay in self.stays if stay.loaded_at == boundary]

    @property
    def first_boundary(self) -> int:
        return min((stay.stored_at for stay in self.stays), default=0)

    @property
    def last_boundary(self) -> int:
        return max((stay.loaded_at for stay in self.stays), default=0)

    @property
    def copied_bytes(self) -> int:
        """Bytes that a step stores and loads, together."""
        return 2 * sum(stay.num_bytes for stay in self.stays)


NO_ARENA = ArenaPlan(0, (), 0)


def plan_arena(
    graph: StepGraph,
    schedule: AnySchedule,
    target: Target,
    *,
    fence_free_inputs: bool,
    is_guarded: bool,
) -> tuple[list[Segment], ArenaPlan]:
    """The segments of a schedule with exchanges between them, and the arena's contents.

    Arguments:
        graph, schedule: the schedule and the graph that it was planned on.
        target: the device.
        fence_free_inputs, is_guarded: see `segments.cut`.

    Returns:
        The segments, whose `fenced` are without the tensors that their exchange stores or
        loads, and the arena's plan.
    """
    lives = lifetimes(graph, schedule)
    intervals = choose_idle_intervals(graph, lives, target)
    live = lives.live_bytes(graph.in_pool_bytes)
    tolerance = int(_TOLERANCE * live.max(initial=0))
    cut_at = functools.partial(
        cut, graph, schedule, fence_free_inputs=fence_free_inputs, is_guarded=is_guarded
    )
    segments = cut_at()
    extra = _extra_boundaries(intervals, _starts(segments), tolerance)
    if extra:
        segments = cut_at(also_before=extra)
    starts = np.array(_starts(segments))
    unplaced = _stays(intervals, starts)
    packing = _ext.pack(
        first=np.array([s.stored_at for s in unplaced], np.int64),
        last=np.array([s.loaded_at - 1 for s in unplaced], np.int64),
        bytes=np.array([s.num_bytes for s in unplaced], np.int64),
        alignment=target.alignment_bytes,
        effort=_PACKING_EFFORT,
    )
    stays = tuple(
        dataclasses.replace(stay, offset=offset)
        for stay, offset in zip(unplaced, packing.offsets.tolist(), strict=True)
    )
    plan = ArenaPlan(
        arena_bytes=packing.peak_bytes,
        stays=stays,
        outside_bytes=int(_outside(live, stays, starts).max(initial=0)),
    )
    return [_without_stays(k, s, plan) for k, s in enumerate(segments)], plan


def _starts(segments: Sequence[Segment]) -> list[int]:
    """The number of every segment's first execution."""
    lengths = [len(segment.executions) for segment in segments]
    return [0, *itertools.accumulate(lengths[:-1])]


def _extra_boundaries(
    intervals: Sequence[IdleInterval], starts: Sequence[int], tolerance: int
) -> set[int]:
    """Numbers of the executions before which another boundary is needed, to limit the live
    bytes outside of the arena."""
    last = max((s.until for s in intervals), default=0)
    stores, loads = np.zeros(last + 1, np.int64), np.zeros(last + 1, np.int64)
    for interval in intervals:
        stores[interval.after + 1] += interval.num_bytes
        loads[interval.until] += interval.num_bytes
    # A value to store is outside until the next boundary, a loaded value from the previous
    # one on: the same question, forwards and backwards.
    extra = _where_too_much(range(last + 1), stores, set(starts), tolerance)
    known = extra.union(starts)
    return extra | _where_too_much(range(last, 0, -1), loads, known, tolerance)


def _where_too_much(
    executions: Iterable[int], more_bytes: np.ndarray, known: set[int], tolerance: int
) -> set[int]:
    """Executions where the bytes since the last boundary, in this direction, exceed the
    tolerance. `more_bytes` has the bytes that each adds: int64[executions]."""
    found: set[int] = set()
    since = 0
    for now in executions:
        since += more_bytes[now]
        if now in known:
            since = 0
        elif since > tolerance:
            found.add(now)
            since = 0
    return found


def _stays(intervals: Sequence[IdleInterval], starts: np.ndarray) -> list[Stay]:
    """The idle intervals, each from the first boundary after it begins to the last before
    it ends, with offsets 0; without those that contain fewer than two boundaries."""
    stays = []
    for interval in intervals:
        stored_at = int(np.searchsorted(starts, interval.after, side="right"))
        loaded_at = int(np.searchsorted(starts, interval.until, side="right")) - 1
        if stored_at < loaded_at:
            stays.append(Stay(interval.tensor, interval.num_bytes, stored_at, loaded_at, 0))
    return stays


def _outside(live: np.ndarray, stays: Sequence[Stay], starts: np.ndarray) -> np.ndarray:
    outside = live.copy()
    for stay in stays:
        outside[starts[stay.stored_at] : starts[stay.loaded_at]] -= stay.num_bytes
    return outside


def _without_stays(boundary: int, segment: Segment, plan: ArenaPlan) -> Segment:
    """The segment without the tensors that its exchange stores or loads: they do not pass
    through it as well."""
    exchanged = {s.tensor for s in plan.stored_at(boundary) + plan.loaded_at(boundary)}
    fenced = tuple(t for t in segment.fenced if t not in exchanged)
    return dataclasses.replace(segment, fenced=fenced)
