"""Schedule of a file: a schedule's tables as JSON, and back as one that was validated."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import COMPUTE, EVICT, FREE, RECOMPUTE, AnySchedule
from coop_jax.plan.validated import placed_apart
from coop_jax.saved.document import Node, PlanFault

_KINDS = {COMPUTE: "run", RECOMPUTE: "again", EVICT: "evict", FREE: "free"}
_KEYS = (
    "alignment",
    "max_live_bytes",
    "copy_on_write",
    "capacity",
    "peak_bytes",
    "steps",
    "placements",
    "inputs",
    "workspaces",
)
# The core adds offsets and sizes: such numbers stay far from 2**63.
_MOST = 2**60
# More the core refuses: sums of sizes that are rounded up to it must not overflow.
_MOST_ALIGNMENT = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class SavedStatistics:
    """Those of `Schedule.statistics` that are asked of a plan."""

    compute_seconds: float
    recompute_seconds: float
    max_live_bytes: int

    @property
    def compute_overhead(self) -> float:
        return 1 + self.recompute_seconds / max(self.compute_seconds, 1e-30)


@dataclasses.dataclass(frozen=True, eq=False)
class SavedSchedule:
    """A schedule of a file: `steps`, `placements` and `alignment` as of `Schedule`."""

    steps: np.ndarray
    placements: np.ndarray
    alignment: int
    statistics: SavedStatistics


def schedule_contents(graph: StepGraph, schedule: AnySchedule) -> dict[str, Any]:
    """A schedule as a part of a document: the core's, or one that the core validates."""
    if not isinstance(schedule, _ext.Schedule):
        schedule = placed_apart(graph, schedule)
    return {
        "alignment": schedule.alignment,
        "max_live_bytes": schedule.statistics.max_live_bytes,
        "copy_on_write": schedule.copy_on_write,
        "capacity": schedule.capacity,
        "peak_bytes": schedule.statistics.peak_bytes,
        "steps": [f"{_KINDS[kind]} {index}" for kind, index in schedule.steps.tolist()],
        "placements": schedule.placements.tolist(),
        "inputs": schedule.initial_placements.tolist(),
        "workspaces": schedule.workspaces.tolist(),
    }


def schedule_of(node: Node, graph: StepGraph) -> SavedSchedule:
    """The schedule of a document.

    Raises:
        PlanFault: the validator finds something wrong with it.
    """
    alignment, live, shares, capacity, peak, steps, *tables = node.fields(*_KEYS)
    sizes = {"most": _MOST}
    given = _ext.Schedule(
        _array([_step(item) for item in steps.items()], 2),
        *(_table(table, width) for table, width in zip(tables, (4, 2, 2), strict=True)),
        capacity=capacity.number(**sizes),
        peak_bytes=peak.number(**sizes),
        alignment=_power_of_two(alignment),
        copy_on_write=shares.flag(),
        max_live_bytes=live.number(**sizes),
    )
    violations = _ext.validate(graph.core, given, pool_bytes=None, live_bytes=None)
    if violations:
        raise PlanFault(f"`{node.where}` is no plan of this step: {violations[0]}")
    seconds = graph.core.op_seconds
    kinds, indices = given.steps.T
    return SavedSchedule(
        given.steps,
        given.placements,
        given.alignment,
        SavedStatistics(
            float(seconds.sum()),
            float(seconds[indices[kinds == RECOMPUTE]].sum()),
            given.statistics.max_live_bytes,
        ),
    )


def _step(node: Node) -> tuple[int, int]:
    kind, _, index = node.text().partition(" ")
    known = {name: number for number, name in _KINDS.items()}
    if kind not in known or not (index.isascii() and index.isdecimal()) or len(index) > 9:
        raise node.fault("a step, as `run 5`, `again 5`, `evict 7` or `free 7`")
    return known[kind], int(index)


def _table(node: Node, width: int) -> np.ndarray:
    rows = [[n.number(-1, _MOST) for n in row.row(width)] for row in node.items()]
    return _array(rows, width)


def _power_of_two(node: Node) -> int:
    number = node.number(1, _MOST_ALIGNMENT)
    if number & (number - 1):
        raise node.fault("a power of two")
    return number


def _array(rows: Any, width: int) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, width)
