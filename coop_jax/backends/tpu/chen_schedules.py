"""Chen schedules: plans that keep what passes from one layer of a step to the next.

As an expert does by hand with `jax.checkpoint`, without the annotations: the forward pass
is divided where little passes, what passes is kept, and on the way back everything else is
made again, a layer at a time (Chen et al., 2016, "Training Deep Nets with Sublinear Memory
Cost"). The search finds plans that need less in their own order. But these run long
stretches without a fence, and there XLA:TPU orders and fuses to need less than in any order
of ours (`backends.tpu.list_schedule`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from coop_jax.backends.tpu.forward_cuts import Forward
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import COMPUTE, EVICT, FREE, RECOMPUTE, Execution
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.plan.validated import placed_apart, validated

# Into so many layers at most; by this factor fewer from one plan to the next.
_MOST_LAYERS = 64
_FACTOR = 2**0.25


@dataclasses.dataclass(frozen=True, eq=False)
class LayeredStatistics:
    """Those of `Schedule.statistics` that are asked of a plan."""

    compute_seconds: float
    recompute_seconds: float
    max_live_bytes: int = 0

    @property
    def compute_overhead(self) -> float:
        return 1 + self.recompute_seconds / self.compute_seconds


@dataclasses.dataclass(frozen=True, eq=False)
class LayeredSchedule:
    """As `Schedule`, without addresses: XLA places the tensors."""

    steps: np.ndarray
    placements: np.ndarray
    alignment: int
    statistics: LayeredStatistics


def layered_schedules(graph: StepGraph, alignment: int) -> list[LayeredSchedule]:
    """Plans with fewer and fewer layers; those that are divided alike once."""
    if not graph.operations:
        return []
    forward = Forward(graph)
    divisions: dict[tuple[int, ...], None] = {}
    layers = float(_MOST_LAYERS)
    while layers >= 2:
        divisions[forward.boundaries(forward.idle_bytes / layers)] = None
        layers /= _FACTOR
    return [
        _scheduled(graph, _executions(graph, forward.dropped(boundaries)), alignment)
        for boundaries in divisions
        if boundaries
    ]


def _executions(graph: StepGraph, dropped: Mapping[int, Sequence[int]]) -> list[Execution]:
    """Every operation, and before it those that make what it misses."""
    kept: set[int] = set()
    while True:
        attempt = _Attempt(graph, dropped, kept)
        if attempt.too_late is None:
            return attempt.executions
        kept.update(graph.operations[attempt.too_late].outputs)


class _Attempt:
    """The executions if all is dropped but `kept`.

    Attributes:
        executions: up to where it fails, if it does.
        too_late: an operation that was to run again when what it reads is overwritten.
    """

    def __init__(
        self, graph: StepGraph, dropped: Mapping[int, Sequence[int]], kept: set[int]
    ) -> None:
        self.executions: list[Execution] = []
        self.too_late: int | None = None
        resident = np.zeros(len(graph.tensors), bool)
        resident[: graph.num_inputs] = True
        overwritten: set[int] = set()
        for number, operation in enumerate(graph.operations):
            for missing in _missing(graph, operation.inputs, resident):
                if not overwritten.isdisjoint(graph.operations[missing].inputs):
                    self.too_late = missing
                    return
                outputs = graph.operations[missing].outputs
                makes = tuple(t for t in outputs if not resident[t])
                self.executions.append(Execution(missing, True, makes))
                resident[list(outputs)] = True
            self.executions.append(Execution(number, False, operation.outputs))
            overwritten.update(graph.overwritten_by.get(number, ()))
            resident[list(operation.outputs)] = True
            resident[[t for t in dropped.get(number, ()) if t not in kept]] = False


def _missing(graph: StepGraph, inputs: Sequence[int], resident: np.ndarray) -> list[int]:
    """The operations that make what is not there, in their order."""
    producer = graph.core.producer
    needed: set[int] = set()
    todo = [tensor for tensor in inputs if not resident[tensor]]
    while todo:
        operation = int(producer[todo.pop()])
        if operation not in needed:
            needed.add(operation)
            reads = graph.operations[operation].inputs
            todo += [tensor for tensor in reads if not resident[tensor]]
    return sorted(needed)


def _scheduled(
    graph: StepGraph, executions: Sequence[Execution], alignment: int
) -> LayeredSchedule:
    """Every version of a tensor ends after its last use; a result of the step never."""
    reads = [graph.operations[execution.operation].inputs for execution in executions]
    last_read: dict[int, int] = {}
    for now, inputs in enumerate(reads):
        last_read.update(dict.fromkeys(inputs, now))
    is_result = graph.core.last_use == len(graph.operations)

    def made(now: int, execution: Execution) -> list[int]:
        """The values that it makes in the pool, also those that are not read any more."""
        return [
            tensor
            for tensor in graph.operations[execution.operation].outputs
            if graph.in_pool_bytes[tensor]
            and (
                tensor in execution.makes
                or (last_read.get(tensor, -1) < now and not is_result[tensor])
            )
        ]

    makes = [made(now, execution) for now, execution in enumerate(executions)]
    present: dict[int, list[int]] = {}  # The tensor and its last use.
    versions: list[list[int]] = []
    for now, inputs in enumerate(reads):
        for tensor in inputs:
            if tensor in present:
                present[tensor][1] = now
        for tensor in makes[now]:
            present[tensor] = [tensor, now]
            versions.append(present[tensor])
    ends: dict[int, list[tuple[int, int]]] = {}
    for version in versions:
        tensor, last = version
        is_last = present[tensor] is version
        if not (is_last and is_result[tensor]):
            ends.setdefault(last, []).append((FREE if is_last else EVICT, tensor))
    steps: list[tuple[int, int]] = []
    placements: list[tuple[int, int, int, int]] = []
    for now, execution in enumerate(executions):
        placements += [(len(steps), tensor, 0, -1) for tensor in makes[now]]
        kind = RECOMPUTE if execution.is_recompute else COMPUTE
        steps.append((kind, execution.operation))
        steps += ends.get(now, [])
    seconds = graph.core.op_seconds
    again = [e.operation for e in executions if e.is_recompute]
    schedule = LayeredSchedule(
        np.array(steps, np.int64).reshape(-1, 2),
        np.array(placements, np.int64).reshape(-1, 4),
        alignment,
        LayeredStatistics(float(seconds.sum()), float(seconds[again].sum())),
    )
    statistics = dataclasses.replace(
        schedule.statistics, max_live_bytes=_max_live_bytes(graph, schedule)
    )
    schedule = dataclasses.replace(schedule, statistics=statistics)
    validated(graph.core, placed_apart(graph, schedule))
    return schedule


def _max_live_bytes(graph: StepGraph, schedule: LayeredSchedule) -> int:
    """As in `Schedule.statistics`: of blocks that are rounded up to the alignment."""

    def padded(sizes: np.ndarray) -> np.ndarray:
        return -(-sizes // schedule.alignment) * schedule.alignment

    lives = lifetimes(graph, schedule)
    lives = dataclasses.replace(lives, workspace_bytes=padded(lives.workspace_bytes))
    sizes = padded(np.array(graph.in_pool_bytes, np.int64))
    return int(max(lives.live_bytes(tuple(sizes.tolist())), default=0))
