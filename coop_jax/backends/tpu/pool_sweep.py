"""Pool sweep: plans for many pool sizes, as XLA:TPU has a second memory on the chip.

On a TPU what a step needs is not what its plan keeps alive, but what of that lies in main
memory (`backends.tpu.heap`), and a plan that keeps less may well need more. Plans are cheap
and compilations are not: so plan for sizes around the room there is, and compile what is
expected to fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from coop_jax.backends.quirk import Quirk
from coop_jax.backends.tpu.chen_schedules import LayeredSchedule, layered_schedules
from coop_jax.backends.tpu.heap import ExpectedHeap, expected_heap
from coop_jax.backends.tpu.quirks import CHEN_SCHEDULES
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import PlanOptions, key_of, plan_pool

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
# The bytes that a plan prefers to keep alive, as part of the pool: other values in other
# places, and so other gaps.
_PREFERENCES = (None, 0.85)
_TIGHTEST_PREFERENCES = (None, 0.93, 0.85, 0.75)


@dataclasses.dataclass(frozen=True, eq=False)
class Scanned:
    """A plan, and the bytes that its step is expected to need."""

    graph: StepGraph
    schedule: AnySchedule
    expected: ExpectedHeap

    @property
    def likely_bytes(self) -> int:
        """Bytes that it hardly exceeds."""
        return self.expected.bytes + self.expected.spread_bytes

    @property
    def is_layered(self) -> bool:
        """Whether it is one of `chen_schedules`, which have no memory fences."""
        return isinstance(self.schedule, LayeredSchedule)

    @property
    def key(self) -> bytes:
        return key_of(self.graph, self.schedule)

    @property
    def recompute_seconds(self) -> float:
        return self.schedule.statistics.recompute_seconds


def scan_down(
    graphs: Sequence[StepGraph],
    options: PlanOptions,
    room: int,
    without: Collection[Quirk] = (),
) -> list[Scanned]:
    """Plans around a room in bytes, those that recompute least first.

    Arguments:
        without: quirks of `backends.tpu.quirks` that are switched off.
    """
    found = _layered(graphs, without)
    pool, within = _FIRST * room + graphs[0].target.near_bytes, 0
    while within < _ENOUGH:
        plans = list(_plans(graphs, options, int(pool), _PREFERENCES, without))
        if not plans:
            break
        found.update((plan.key, plan) for plan in plans)
        fits = min(plan.likely_bytes for plan in plans) <= _WELL_WITHIN * room
        within = within + 1 if fits else 0
        pool *= _FACTOR
    return sorted(found.values(), key=lambda plan: plan.recompute_seconds)


def scan_tightest(
    graphs: Sequence[StepGraph],
    options: PlanOptions,
    smallest_pool: int,
    without: Collection[Quirk] = (),
) -> list[Scanned]:
    """Plans with the smallest pools, the most promising first; `without` as before."""
    found: dict[bytes, Scanned] = {}
    for i in range(_TIGHTEST):
        pool = int(smallest_pool / _FACTOR**i) + 1
        plans = _plans(graphs, options, pool, _TIGHTEST_PREFERENCES, without)
        found.update((plan.key, plan) for plan in plans)
    most = max((plan.likely_bytes for plan in found.values()), default=0)
    layered = _layered(graphs, without).items()
    found.update((key, plan) for key, plan in layered if plan.likely_bytes <= most)
    return sorted(found.values(), key=_promise)


def _layered(
    graphs: Sequence[StepGraph], without: Collection[Quirk]
) -> dict[bytes, Scanned]:
    """The layered plans of all graphs, by their keys."""
    if CHEN_SCHEDULES in without:
        return {}
    plans = (
        Scanned(graph, schedule, expected_heap(graph, schedule, without))
        for graph in graphs
        for schedule in layered_schedules(graph, graph.target.alignment_bytes)
    )
    return {plan.key: plan for plan in plans}


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
    without: Collection[Quirk],
) -> Iterator[Scanned]:
    """Plans for one pool, of every graph and preference."""
    for graph in graphs:
        for part in preferences:
            preferred = None if part is None else int(part * pool_bytes)
            schedule = plan_pool(graph, pool_bytes, options, preferred)
            if schedule is not None:
                yield Scanned(graph, schedule, expected_heap(graph, schedule, without))
