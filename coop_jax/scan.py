"""Scan: plans for many sizes of the pool, where XLA packs worse than a plan does.

On a TPU what a step needs is not what its plan keeps alive (`coop_jax.tpu_heap`), and a
plan that keeps less may well need more. Plans are cheap and compilations are not: so plan
for sizes around the room there is, make those that almost fit lower (`coop_jax.walls`), and
compile what is expected to fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

from coop_jax.graph import StepGraph
from coop_jax.plan import PlanOptions, key_of, plan_pool
from coop_jax.tpu_heap import ExpectedHeap, expected_heap
from coop_jax.walls import Reserve, joined, reserves_below, with_reserve

# From this part of the room, and what there is room for on the chip, downwards by this
# factor.
_FIRST = 1.25
_FACTOR = 0.97
# So many plans in a row that need this part of the room at most end the scan: the next
# ones recompute more, and need less than there is.
_ENOUGH = 4
_WELL_WITHIN = 0.85
# The tightest plans: from the smallest pool upwards.
_TIGHTEST = 10
# What a plan keeps alive where no single operation needs more, as part of the pool: other
# values in other places, and so other gaps.
_PREFERENCES = (None, 0.85)
_TIGHTEST_PREFERENCES = (None, 0.93, 0.85, 0.75)
# So many plans are made lower, the tightest by this part at a time.
_LOWERED = 4
_LOWER_BY = 0.1
# A lower plan may have more alive elsewhere.
_MORE_POOL = (1.0, 1.1)


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """A plan, what its step is expected to need, and what it was planned with."""

    graph: StepGraph
    schedule: Any
    expected: ExpectedHeap
    pool_bytes: int
    reserve: Reserve

    @property
    def likely_bytes(self) -> int:
        """What it hardly needs more than."""
        return self.expected.bytes + self.expected.spread_bytes

    @property
    def key(self) -> bytes:
        return key_of(self.graph, self.schedule)

    @property
    def recompute_seconds(self) -> float:
        return self.schedule.statistics.recompute_seconds


def scan_down(
    graphs: Sequence[StepGraph], options: PlanOptions, room: int
) -> list[Scanned]:
    """Plans around a room in bytes, those that recompute least first."""
    found: dict[bytes, Scanned] = {}
    pool, within = _FIRST * room + graphs[0].target.near_bytes, 0
    while within < _ENOUGH:
        plans = list(_plans(graphs, options, int(pool), _PREFERENCES))
        if not plans:
            break
        found.update((plan.key, plan) for plan in plans)
        fits = min(plan.likely_bytes for plan in plans) <= _WELL_WITHIN * room
        within = within + 1 if fits else 0
        pool *= _FACTOR

    def next_to_lower(lowered: set[bytes]) -> Scanned | None:
        """The one that is the least too large, of those that are worth it."""
        cheapest = min(
            (p.recompute_seconds for p in found.values() if p.likely_bytes <= room),
            default=float("inf"),
        )
        return min(
            (
                plan
                for plan in found.values()
                if plan.likely_bytes > room
                and plan.recompute_seconds < cheapest
                and plan.key not in lowered
            ),
            key=lambda plan: plan.likely_bytes,
            default=None,
        )

    _lower(found, options, next_to_lower, lambda plan: plan.likely_bytes - room)
    return sorted(found.values(), key=lambda plan: plan.recompute_seconds)


def scan_tightest(
    graphs: Sequence[StepGraph], options: PlanOptions, smallest_pool: int
) -> list[Scanned]:
    """Plans with the smallest pools, the most promising first."""
    found: dict[bytes, Scanned] = {}
    for i in range(_TIGHTEST):
        pool = int(smallest_pool / _FACTOR**i) + 1
        plans = _plans(graphs, options, pool, _TIGHTEST_PREFERENCES)
        found.update((plan.key, plan) for plan in plans)

    def next_to_lower(lowered: set[bytes]) -> Scanned | None:
        left = (plan for plan in found.values() if plan.key not in lowered)
        return min(left, key=_promise, default=None)

    _lower(found, options, next_to_lower, lambda plan: int(_LOWER_BY * plan.expected.bytes))
    return sorted(found.values(), key=_promise)


def _lower(
    found: dict[bytes, Scanned],
    options: PlanOptions,
    next_to_lower: Callable[[set[bytes]], Scanned | None],
    too_much: Callable[[Scanned], int],
) -> None:
    """Adds plans with less room where the walls of those that are there begin."""
    lowered: set[bytes] = set()
    while len(lowered) < _LOWERED and (plan := next_to_lower(lowered)) is not None:
        lowered.add(plan.key)
        for more in _MORE_POOL:
            pool = int(more * plan.pool_bytes)
            for reserve in reserves_below(plan.graph, plan.schedule, pool, too_much(plan)):
                both = joined(plan.reserve, reserve)
                lower = _planned(plan.graph, options, pool, None, both)
                if lower is not None:
                    found.setdefault(lower.key, lower)


def _promise(plan: Scanned) -> float:
    """Bytes, squared, times time: a hundredth of the bytes is worth two of the time. Nobody
    wants the last byte for twice the time; and the more runs again, the less is known of
    what XLA makes of it: it chooses the order."""
    return plan.likely_bytes**2 * plan.schedule.statistics.compute_overhead


def _plans(
    graphs: Sequence[StepGraph],
    options: PlanOptions,
    pool_bytes: int,
    preferences: Sequence[float | None],
) -> Iterator[Scanned]:
    for graph in graphs:
        for part in preferences:
            preferred = None if part is None else int(part * pool_bytes)
            plan = _planned(graph, options, pool_bytes, preferred)
            if plan is not None:
                yield plan


def _planned(
    graph: StepGraph,
    options: PlanOptions,
    pool_bytes: int,
    preferred_bytes: int | None,
    reserve: Reserve = MappingProxyType({}),
) -> Scanned | None:
    reserved = with_reserve(graph, reserve)
    schedule = plan_pool(reserved, pool_bytes, options, preferred_bytes)
    if schedule is None:
        return None
    expected = expected_heap(graph, schedule)
    return Scanned(graph, schedule, expected, pool_bytes, reserve)
