"""Arena layout: what lies in the arena, from which boundary to which, at which offset.

`placement="arena"` keeps values that wait long in one contiguous buffer. At a boundary
between two segments of the step everything that begins to wait is stored, and everything
that the segment reads next is brought back (`exchange.py`). Loads come before stores, so a
block is free for what the same exchange stores.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from coop_jax import _ext
from coop_jax.arena.selection import Sojourn, choose_sojourns
from coop_jax.emit.segments import Segment, cut
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.targets import Target

# What a boundary may keep outside longer than needed, as a part of what is alive at most:
# what waits to be stored at the next one, and what is brought back too early.
_TOLERANCE = 1 / 48
# Of the search for offsets.
_PACKING_EFFORT = 20_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Stay:
    """A value's stay in the arena.

    Attributes:
        tensor: its index in the graph.
        num_bytes: its size.
        stored_at: the boundary that stores it; boundary `k` is before segment `k`.
        loaded_at: the boundary that brings it back, later than `stored_at`.
        offset: where it lies meanwhile.
    """

    tensor: int
    num_bytes: int
    stored_at: int
    loaded_at: int
    offset: int


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaPlan:
    """The stays of a step, in the order of their beginning.

    Attributes:
        arena_bytes: the size of the arena.
        stays: who is where, when.
        outside_bytes: the most bytes that are alive outside of the arena.
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
        """Bytes that a step stores and brings back, together."""
        return 2 * sum(stay.num_bytes for stay in self.stays)


NO_ARENA = ArenaPlan(0, (), 0)


def plan_arena(
    graph: StepGraph,
    schedule: AnySchedule,
    target: Target,
    *,
    fence_free_inputs: bool,
) -> tuple[list[Segment], ArenaPlan]:
    """Segments of a schedule with exchanges between them.

    Arguments:
        graph, schedule: what is to run.
        target: the device.
        fence_free_inputs: see `segments.cut`.
    """
    lives = lifetimes(graph, schedule)
    sojourns = choose_sojourns(graph, lives, target)
    live = lives.live_bytes(graph.in_pool_bytes)
    tolerance = int(_TOLERANCE * live.max(initial=0))
    segments = cut(graph, schedule, fence_free_inputs=fence_free_inputs)
    extra = _extra_boundaries(sojourns, _starts(segments), tolerance)
    if extra:
        segments = cut(
            graph, schedule, fence_free_inputs=fence_free_inputs, also_before=extra
        )
    starts = np.array(_starts(segments))
    unplaced = _stays(sojourns, starts)
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
    sojourns: Sequence[Sojourn], starts: Sequence[int], tolerance: int
) -> set[int]:
    """Executions before which another boundary has to be, for memory's sake."""
    last = max((s.until for s in sojourns), default=0)
    stores, loads = np.zeros(last + 1, np.int64), np.zeros(last + 1, np.int64)
    for sojourn in sojourns:
        stores[sojourn.after + 1] += sojourn.num_bytes
        loads[sojourn.until] += sojourn.num_bytes
    # What is to be stored waits outside for the next boundary, what is loaded lies there
    # from the one before: the same question, forwards and backwards.
    extra = _where_too_much(range(last + 1), stores, set(starts), tolerance)
    known = extra.union(starts)
    return extra | _where_too_much(range(last, 0, -1), loads, known, tolerance)


def _where_too_much(
    executions: Iterable[int], more_bytes: np.ndarray, known: set[int], tolerance: int
) -> set[int]:
    """Where the bytes since the last boundary, in this direction, exceed the tolerance."""
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


def _stays(sojourns: Sequence[Sojourn], starts: np.ndarray) -> list[Stay]:
    """From the first boundary after a wait begins to the last before it ends."""
    stays = []
    for sojourn in sojourns:
        stored_at = int(np.searchsorted(starts, sojourn.after, side="right"))
        loaded_at = int(np.searchsorted(starts, sojourn.until, side="right")) - 1
        if stored_at < loaded_at:
            stays.append(Stay(sojourn.tensor, sojourn.num_bytes, stored_at, loaded_at, 0))
    return stays


def _outside(live: np.ndarray, stays: Sequence[Stay], starts: np.ndarray) -> np.ndarray:
    outside = live.copy()
    for stay in stays:
        outside[starts[stay.stored_at] : starts[stay.loaded_at]] -= stay.num_bytes
    return outside


def _without_stays(boundary: int, segment: Segment, plan: ArenaPlan) -> Segment:
    """What an exchange stores or brings back does not pass through it as well."""
    exchanged = {s.tensor for s in plan.stored_at(boundary) + plan.loaded_at(boundary)}
    fenced = tuple(t for t in segment.fenced if t not in exchanged)
    return dataclasses.replace(segment, fenced=fenced)
