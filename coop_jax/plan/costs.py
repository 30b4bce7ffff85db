"""Costs: what a schedule costs, in the terms of the Coop paper's experiment."""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax import _ext
from coop_jax.base.strict_values import whole_bytes

Schedule = _ext.Schedule


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Costs of a schedule, in the terms of the Coop paper's experiment.

    Attributes:
        pool_bytes: the budget, which is the pool's size.
        memory_ratio: the budget over `reference_bytes`, the budget at which nothing needs
            to be evicted (not over the peak that was used).
        compute_overhead: seconds of every operation run, recomputations included, over
            the seconds of every operation once.
        forced_evictions: tensors evicted to make room.
        eager_evictions: tensors freed because the program released them, though they can be
            recomputed.
        recomputations: operations run again.
        searches: number of allocations for which the free memory did not suffice.
        search_seconds: of searching and evicting in all of them; varies from run to run.
        pieces_examined: evictable tensors whose cost was computed, in all searches: a
            measure of latency that does not depend on the machine.
        fragmentation: mean over the searches of free bytes over pool bytes, right after
            the room was found and before it is taken. The definition of the authors'
            merged code; never below the share of the block itself.
        fragmentation_block_used: the same with that block counted as used. The definition
            of the authors' first code.
        peak_bytes: the highest end address in use.
        max_live_bytes: the most bytes in use while an operation runs.
    """

    pool_bytes: int
    memory_ratio: float
    compute_overhead: float
    forced_evictions: int
    eager_evictions: int
    recomputations: int
    searches: int
    search_seconds: float
    pieces_examined: int
    fragmentation: float
    fragmentation_block_used: float
    peak_bytes: int
    max_live_bytes: int


def metrics(schedule: Schedule, reference_bytes: int) -> Metrics:
    """The metrics of a schedule that a planner made.

    Arguments:
        schedule: from `plan_graph`, `minimum_pool` or `unconstrained`.
        reference_bytes: the pool that counts as memory ratio 1: the peak of
            `unconstrained`, the same for all methods that are compared.

    Raises:
        TypeError: `schedule` is not a `Schedule`, or the bytes are not an int.
        ValueError: the bytes are not positive, or the schedule was made from arrays and has
            no known costs.
    """
    check_schedule("metrics", schedule)
    if not schedule.has_statistics:
        raise ValueError(
            "`planning.metrics(schedule=...)` must be made by a planner. Got one from "
            f"arrays, {schedule!r}, whose costs are not known. Pass what `plan_graph` "
            "returned."
        )
    todo = "Pass `unconstrained(graph).statistics.peak_bytes`."
    what = "`planning.metrics(reference_bytes=...)`"
    reference_bytes = whole_bytes(what, reference_bytes, todo)
    if reference_bytes <= 0:
        raise ValueError(f"{what} must be positive. Got {reference_bytes}. {todo}")
    statistics = schedule.statistics
    return Metrics(
        pool_bytes=schedule.capacity,
        memory_ratio=schedule.capacity / reference_bytes,
        compute_overhead=statistics.compute_overhead,
        forced_evictions=statistics.forced_evictions,
        eager_evictions=statistics.eager_evictions,
        recomputations=statistics.recomputations,
        searches=len(schedule.events),
        search_seconds=statistics.search_seconds,
        pieces_examined=statistics.pieces_examined,
        fragmentation=statistics.fragmentation_rate,
        fragmentation_block_used=statistics.fragmentation_rate_block_used,
        peak_bytes=statistics.peak_bytes,
        max_live_bytes=statistics.max_live_bytes,
    )


def check_schedule(caller: str, schedule: Any) -> None:
    """Raises a TypeError where something else is given for a schedule."""
    if isinstance(schedule, Schedule):
        return
    raise TypeError(
        f"`planning.{caller}(schedule=...)` must be a `planning.Schedule`. Got "
        f"{type(schedule).__name__}. Make one with `plan_graph` or from arrays."
    )
