"""Refused pools: those in which a graph was found to have no plan.

To find that there is none takes longest: every planner is tried, with all of its effort. A
graph without a plan has none in less room either, nor with more scratch, so nothing is
looked for there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from coop_jax.graph.step_graph import StepGraph


@dataclasses.dataclass(frozen=True, eq=False)
class _Refused:
    """A graph, but for its scratch, and a pool that it has no plan in."""

    operations: tuple[Any, ...]
    in_pool_bytes: tuple[int, ...]
    scratch_bytes: np.ndarray
    room: int
    preferred: int

    def is_less(self, other: _Refused) -> bool:
        """Whether the other has no less scratch and no more room."""
        return (
            self.operations is other.operations
            and self.in_pool_bytes is other.in_pool_bytes
            and self.room >= other.room
            and self.preferred >= other.preferred
            and bool((self.scratch_bytes <= other.scratch_bytes).all())
        )


class RefusedPools:
    """The pools in which graphs of a step have no plan."""

    def __init__(self) -> None:
        self._refused: list[_Refused] = []

    def add(self, graph: StepGraph, room: int, preferred: int | None) -> None:
        """Remember that a graph has no plan; arguments as of `plan_pool`."""
        self._refused.append(_asked(graph, room, preferred))

    def covers(self, graph: StepGraph, room: int, preferred: int | None) -> bool:
        """Whether a graph is known to have no plan; arguments as of `plan_pool`."""
        asked = _asked(graph, room, preferred)
        return any(refused.is_less(asked) for refused in self._refused)


def _asked(graph: StepGraph, room: int, preferred: int | None) -> _Refused:
    return _Refused(
        graph.operations,
        graph.in_pool_bytes,
        np.array(graph.core.op_workspace_bytes, np.int64),
        room,
        room if preferred is None else min(room, preferred),
    )
