"""Live ranges: the values that a schedule keeps, from when to when, and their uses.

Time is the number of an execution. A *version* is a tensor from one making to the end of
that block; the same tensor recomputed is another version.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from coop_jax.base.sweep import bytes_over_time
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule, decoded


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """One making of a tensor, in the pool.

    Attributes:
        tensor: its index.
        first: the execution that makes it.
        last: the last execution at which the plan counts it as alive.
        uses: `first` and the executions that read it, ascending.
    """

    tensor: int
    first: int
    last: int
    uses: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Lifetimes:
    """All versions of a schedule, and the workspace of its executions.

    Attributes:
        versions: in the order in which they are made.
        operation: operation by execution.
        workspace_bytes: bytes of scratch of every execution.
    """

    versions: tuple[Version, ...]
    operation: tuple[int, ...]
    workspace_bytes: np.ndarray

    def live_bytes(self, in_pool_bytes: tuple[int, ...]) -> np.ndarray:
        """Live bytes at every execution, int64[executions], its scratch included."""
        blocks = [(v.first, v.last, in_pool_bytes[v.tensor]) for v in self.versions]
        first, last, size = np.array(blocks, np.int64).reshape(-1, 3).T
        count = len(self.operation)
        return bytes_over_time(first, last, size, count) + self.workspace_bytes


def lifetimes(graph: StepGraph, schedule: AnySchedule) -> Lifetimes:
    """The versions of a schedule, layered or not, without those outside the pool."""
    size = graph.in_pool_bytes
    open_since: dict[int, tuple[int, list[int]]] = {}
    versions: list[Version] = []
    operation: list[int] = []

    def close(tensor: int) -> None:
        first, uses = open_since.pop(tensor)
        # A block that is taken over ends before the execution that still reads it.
        last = max(len(operation) - 1, first)
        versions.append(Version(tensor, first, last, tuple(dict.fromkeys(uses))))

    read_after_end: dict[int, int] = {}
    for step in decoded(schedule):
        if step.runs:
            now = len(operation)
            for tensor in graph.operations[step.index].inputs:
                if tensor in open_since:
                    open_since[tensor][1].append(now)
                elif tensor in read_after_end:
                    number = read_after_end[tensor]
                    old = versions[number]
                    versions[number] = dataclasses.replace(old, uses=(*old.uses, now))
            read_after_end.clear()
            operation.append(step.index)
            for tensor, _ in step.placed:
                if size[tensor]:
                    open_since[tensor] = now, [now]
        elif step.index in open_since:
            close(step.index)
            read_after_end[step.index] = len(versions) - 1
    for tensor in list(open_since):
        close(tensor)
    versions.sort(key=lambda v: (v.first, v.tensor))
    scratch = graph.core.op_workspace_bytes
    return Lifetimes(
        versions=tuple(versions),
        operation=tuple(operation),
        workspace_bytes=np.array([scratch[k] for k in operation], np.int64),
    )
