"""Validated: no plan leaves the planner unchecked.

The validator (`xla_ext/core/schedule/validator.h`) replays a schedule and shares no code
with the planner. It checks the plan, the statistics that the plan claims, and the limits
that it has to keep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule

Schedule = _ext.Schedule


def validated(
    graph: Any,
    schedule: Schedule,
    *,
    pool_bytes: int | None = None,
    live_bytes: int | None = None,
) -> Schedule:
    """The schedule, if the validator finds nothing wrong with it.

    Arguments:
        graph: the core's graph of the schedule.
        schedule: the schedule to check.
        pool_bytes, live_bytes: limits of its highest end address, and of the bytes in use
            at once; None: no limit.

    Raises:
        AssertionError: something is wrong; the message lists the violations.
    """
    violations = _ext.validate(
        graph, schedule, pool_bytes=pool_bytes, live_bytes=live_bytes
    )
    if violations:
        raise AssertionError(
            "This is a bug in coop_jax, please report it: a plan failed validation: "
            + "; ".join(violations[:3])
        )
    return schedule


def placed_apart(graph: StepGraph, schedule: AnySchedule) -> Schedule:
    """A schedule without addresses as one that can be validated.

    Every block gets an address of its own, so that only the addresses are valid by
    construction. `schedule.steps` and `.placements` are as of `Schedule`, with tensors of
    no bytes left out; `.statistics.max_live_bytes` is claimed.
    """
    core, alignment = graph.core, schedule.alignment
    arrays = core.arrays()
    is_in_pool = ~arrays["tensor_external"]
    padded_to = _padded(arrays["tensor_bytes"], alignment)
    scratch = _padded(arrays["op_workspace_bytes"], alignment)
    inputs = np.flatnonzero(is_in_pool & (core.producer < 0))
    kinds, indices = schedule.steps.T
    placements = _with_empty(graph, schedule, is_in_pool)
    runs = np.flatnonzero(kinds <= Schedule.RECOMPUTE)
    runs = runs[scratch[indices[runs]] > 0]
    sizes = np.concatenate(
        [padded_to[inputs], padded_to[placements[:, 1]], scratch[indices[runs]]]
    )
    ends = np.cumsum(sizes)
    of_inputs, of_tensors, of_runs = np.split(
        ends - sizes, np.cumsum([len(inputs), len(placements)])
    )
    placements[:, 2] = np.where(padded_to[placements[:, 1]] > 0, of_tensors, 0)
    top = int(ends[-1]) if len(ends) else 0
    return Schedule(
        np.ascontiguousarray(schedule.steps),
        placements,
        np.stack([inputs, of_inputs], axis=1),
        np.stack([runs, of_runs], axis=1),
        capacity=top,
        peak_bytes=top,
        alignment=alignment,
        max_live_bytes=schedule.statistics.max_live_bytes,
    )


def _padded(sizes: np.ndarray, alignment: int) -> np.ndarray:
    return -(-sizes // alignment) * alignment


def _with_empty(
    graph: StepGraph, schedule: AnySchedule, is_in_pool: np.ndarray
) -> np.ndarray:
    """The placements, and those of tensors of no bytes, which are made once and stay."""
    empty = [
        (step, tensor, 0, -1)
        for step, (kind, index) in enumerate(schedule.steps.tolist())
        if kind == Schedule.COMPUTE
        for tensor in graph.operations[index].outputs
        if is_in_pool[tensor] and not graph.in_pool_bytes[tensor]
    ]
    rows = np.concatenate([schedule.placements, np.array(empty, np.int64).reshape(-1, 4)])
    return rows[np.argsort(rows[:, 0], kind="stable")]
