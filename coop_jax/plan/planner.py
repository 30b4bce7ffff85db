"""Planner: a graph and the bytes of a pool to a schedule.

A thin layer over the C++ planners (`xla_ext/core`): it names them, gives every plan to
the independent validator, and finds the smallest pool that can be planned.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.base.options import PlanOptions
from coop_jax.base.threads import at_once
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.refused_pools import RefusedPools
from coop_jax.plan.validated import validated

PLANNERS = ("search", "lookahead", "coop", "dtr", "dte")

# A step that takes longer than this many times the original is of no use; the bound
# keeps the search for the smallest pool from planning quadratic recomputation.
_OVERHEAD_LIMIT = 10.0

# XLA places the tensors: the offsets of a plan only have to be valid, not tight.
_PACKING_EFFORT = 2_000_000

# Of a search that only has to show that there is a plan: a hundredth of the default.
_LITTLE_EFFORT = 100_000

Schedule = _ext.Schedule
Planned = tuple[StepGraph, AnySchedule]


@dataclasses.dataclass(frozen=True)
class SmallestPool:
    """The smallest pool a planner can plan.

    Attributes:
        pool_bytes: its size.
        schedule: the plan.
        blocking_operation: the operation that cannot run with less.
    """

    pool_bytes: int
    schedule: AnySchedule
    blocking_operation: int


def planner_options(planner: str | PlanOptions, alignment_bytes: int) -> PlanOptions:
    """All options of a planner that is given by name or by `PlanOptions`.

    The fields that were not given are the same either way.
    """
    if isinstance(planner, str) and planner in PLANNERS:
        planner = PlanOptions(policy=planner)
    if not isinstance(planner, PlanOptions):
        raise ValueError(
            f"`remat_train_step(planner=...)` must be one of {', '.join(PLANNERS)} or a "
            f"`coop_jax.PlanOptions`. Got {planner!r}."
        )
    # XLA places the tensors itself, within a few percent of the live bytes: the search
    # need not plan for the gaps between them.
    return planner.filled(
        alignment=alignment_bytes,
        limits_live_bytes=True,
        packing_effort=_PACKING_EFFORT,
        overhead_limit=_OVERHEAD_LIMIT,
    )


def plan_pool(
    graph: StepGraph,
    pool_bytes: int,
    options: PlanOptions,
    preferred_bytes: int | None = None,
) -> Any | None:
    """A schedule that keeps all tensors inside `pool_bytes`, or None if there is none.

    With `preferred_bytes`, the search keeps at most so many bytes alive wherever no single
    operation needs more, as far as it can; the other planners keep to them everywhere.
    """
    if preferred_bytes is not None:
        preferred_bytes = max(0, preferred_bytes)
        if not _packed_by_xla(options):
            pool_bytes, preferred_bytes = min(pool_bytes, preferred_bytes), None
    if pool_bytes <= 0:
        return None
    schedule = _ext.plan(graph.core, pool_bytes, options, preferred_bytes)
    if not isinstance(schedule, Schedule):
        return None
    return _as_promised(graph, schedule, pool_bytes, options)


def needed_bytes(schedule: Schedule, options: PlanOptions) -> int:
    """Bytes that the planner limits: of the pool that a schedule takes, or live bytes."""
    statistics = schedule.statistics
    if _packed_by_xla(options):
        return statistics.max_live_bytes
    return statistics.peak_bytes


def expected_bytes(graph: StepGraph, schedule: Schedule, options: PlanOptions) -> int:
    """Bytes that a schedule is expected to need when compiled.

    Where XLA places the tensors, half way from the live bytes to the heap that XLA's way
    of packing needs for the plan's live ranges. XLA's live ranges differ from the plan's in
    detail, and packing is sensitive to detail: XLA needed all of the difference for some of
    the tightest plans, nothing of it for others. With a larger budget there is hardly any
    difference. XLA:TPU packs otherwise: `backends.tpu.heap.expected_heap`.
    """
    needed = needed_bytes(schedule, options)
    if not _packed_by_xla(options):
        return needed
    heap_bytes = _ext.xla_heap_bytes(graph.core, schedule)
    return needed + max(0, heap_bytes - needed) // 2


def smallest_pool(graph: StepGraph, options: PlanOptions) -> SmallestPool:
    """The smallest pool that can be planned, found by bisection."""
    return smallest_of([graph], options)[1]


def is_planned_quickly(
    graphs: Sequence[StepGraph], options: PlanOptions, pool_bytes: int
) -> bool:
    """Whether little effort finds a plan for a pool in any of a step's orders; where it
    finds none, there may be one."""
    seconds = (recomputed_quickly(graph, options, pool_bytes) for graph in graphs)
    return any(each < math.inf for each in seconds)


def recomputed_quickly(graph: StepGraph, options: PlanOptions, pool_bytes: int) -> float:
    """Modelled seconds of recomputation of a plan for a pool that little effort finds;
    infinite where it finds none."""
    effort = min(options.search_effort, _LITTLE_EFFORT)
    quick = options.with_fields(search_effort=effort, seconds=None)
    schedule = plan_pool(graph, pool_bytes, quick)
    return math.inf if schedule is None else schedule.statistics.recompute_seconds


def smallest_of(
    graphs: Sequence[StepGraph], options: PlanOptions
) -> tuple[StepGraph, SmallestPool]:
    """The smallest pool that can be planned in any of a step's orders, by bisection.

    All orders are bisected with little effort, those with the lowest bound first: one whose
    bound is above a pool that was found is left out. With all of it the most promising one
    comes first: of the others nothing more is planned than shows that theirs are larger.
    """
    graphs, quick = _quickly_bisected(graphs, options)
    first = min(range(len(quick)), key=lambda number: quick[number].capacity)
    core = graphs[first].core
    most = _ext.minimum_pool_from(core, options, quick[first])
    assert most is not None, "it is compared with no other"
    found = at_once(
        lambda number: (
            most
            if number == first
            else _ext.minimum_pool_from(
                graphs[number].core, options, quick[number], most.capacity
            )
        ),
        range(len(quick)),
    )
    graph, smallest = min(
        ((graph, pool) for graph, pool in zip(graphs, found, strict=True) if pool),
        key=lambda pair: pair[1].capacity,
    )
    last = len(graph.operations) - 1
    return graph, SmallestPool(
        pool_bytes=smallest.capacity,
        schedule=_as_promised(graph, smallest.schedule, smallest.capacity, options),
        blocking_operation=min(max(smallest.blocking_operation, 0), last),
    )


def _quickly_bisected(
    graphs: Sequence[StepGraph], options: PlanOptions
) -> tuple[list[StepGraph], list[Any]]:
    """The graphs that may have the smallest pool, with a small pool of each."""
    bounds = [_ext.lower_bound(graph.core, options.alignment)[0] for graph in graphs]
    pools: dict[int, Any] = {}
    for bound in sorted(set(bounds)):
        if pools and bound > min(pool.capacity for pool in pools.values()):
            break
        alike = [number for number, other in enumerate(bounds) if other == bound]
        found = at_once(
            lambda number: _ext.minimum_pool_quickly(graphs[number].core, options), alike
        )
        assert None not in found, "without eviction nothing is recomputed"
        pools.update(zip(alike, found, strict=True))
    numbers = sorted(pools)
    return [graphs[number] for number in numbers], [pools[number] for number in numbers]


def least_recomputation(
    graphs: Sequence[StepGraph],
    options: PlanOptions,
    room: int,
    preferred: int | None = None,
    refused: RefusedPools | None = None,
) -> Planned | None:
    """The plan that recomputes least, in any of the orders; None if there is none.

    Arguments:
        refused: pools that graphs are known to have no plan in; those of this call are
            added.
    """
    if refused is not None:
        graphs = [g for g in graphs if not refused.covers(g, room, preferred)]
    plans = at_once(
        lambda graph: (graph, plan_pool(graph, room, options, preferred)), graphs
    )
    for graph, schedule in plans:
        if schedule is None and refused is not None:
            refused.add(graph, room, preferred)
    return min(
        ((graph, schedule) for graph, schedule in plans if schedule is not None),
        key=lambda planned: planned[1].statistics.recompute_seconds,
        default=None,
    )


def key_of(graph: StepGraph, schedule: AnySchedule) -> bytes:
    """A key that differs between plans, also of the same step in different orders."""
    order = np.array([operation.anchor for operation in graph.operations], np.int64)
    return order.tobytes() + schedule.steps.tobytes()


def unconstrained(graph: StepGraph, options: PlanOptions) -> Any:
    """The schedule without any eviction, in a pool as large as it needs."""
    return validated(graph.core, _ext.unconstrained(graph.core, options))


def _packed_by_xla(options: PlanOptions) -> bool:
    """Whether a plan limits the live bytes, rather than place tensors in a pool."""
    return options.policy == "search" and options.limits_live_bytes


def _as_promised(
    graph: StepGraph, schedule: Schedule, pool_bytes: int, options: PlanOptions
) -> Schedule:
    """The schedule, validated: within its pool, or its live bytes at most that."""
    limit = None if _packed_by_xla(options) else pool_bytes
    return validated(graph.core, schedule, pool_bytes=limit, live_bytes=pool_bytes)
