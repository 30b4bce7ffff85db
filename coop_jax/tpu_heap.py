"""TPU heap: what XLA:TPU is expected to need for a schedule.

XLA:TPU places buffers of main memory in the order in which they begin, each in the
smallest gap, like an allocator at run time: what a step needs is what it keeps alive and
the gaps in between. This is the allocator that Coop (section 2)
plans for. Its outcome is sensitive to the order of what begins and ends together, which
XLA decides: so the plan is packed as it is and many times with that order shaken. XLA is
expected to need the less of the first and the median of the others, which of all that was
tried was nearest for most networks. How far the results lie apart says how much that is
worth.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from coop_jax import _ext
from coop_jax.graph import StepGraph
from coop_jax.plan import COMPUTE, RECOMPUTE, Schedule

_SAMPLES = 16
_SHAKEN_BY = 1  # operations; what begins or ends further apart XLA rarely exchanges
# A value that lies in the chip's own memory may be kept so much longer there, in
# operations, than in the unmodified step.
_STAYS_NEAR = 8


@dataclasses.dataclass(frozen=True)
class ExpectedHeap:
    """What the heap is expected to take.

    Attributes:
        bytes: the less of the plan's order and the median of those that XLA may choose.
        spread_bytes: the standard deviation of that over them.
    """

    bytes: int
    spread_bytes: int


def expected_heap(graph: StepGraph, schedule: Schedule) -> ExpectedHeap:
    """What XLA:TPU is expected to need for the tensors and workspaces of a schedule."""
    first, last, size = blocks_in_main_memory(graph, schedule)
    if not len(size):
        return ExpectedHeap(0, 0)

    def packed(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
        return _ext.xla_heap_bytes(
            first, last, size, alignment=schedule.alignment, by_time=True
        )

    as_planned = packed(first, last, size)
    random = np.random.default_rng(0)
    peaks = []
    for _ in range(_SAMPLES):
        begin = first + random.integers(-_SHAKEN_BY, _SHAKEN_BY + 1, len(size))
        end = np.maximum(begin, last + random.integers(0, _SHAKEN_BY + 1, len(size)))
        order = random.permutation(len(size))
        peaks.append(packed(begin[order], end[order], size[order]))
    expected = min(as_planned, int(np.median(peaks)))
    return ExpectedHeap(expected, int(np.std(peaks)) // 2)


def bytes_alive(graph: StepGraph, schedule: Schedule) -> int:
    """The most bytes that a schedule keeps alive in main memory at once.

    XLA needs hardly more for a step as written: up to the peak, where the forward pass
    ends, it frees little, and so leaves no gaps.
    """
    first, last, size = blocks_in_main_memory(graph, schedule)
    change = np.zeros(max(last, default=0) + 2, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())


def blocks_in_main_memory(graph: StepGraph, schedule: Schedule) -> tuple[np.ndarray, ...]:
    """First and last execution, and bytes, of what lies in main memory."""
    made: dict[int, list[tuple[int, int]]] = {}
    for step, tensor, _, taken_over in schedule.placements.tolist():
        if graph.in_pool_bytes[tensor]:
            made.setdefault(step, []).append((tensor, taken_over))
    stays = _near_for(graph)
    scratch = graph.core.op_workspace_bytes
    first: dict[int, tuple[int, bool]] = {}  # By tensor: when, and is it always near?
    ended: dict[int, tuple[int, bool]] = {}
    blocks: list[tuple[int, int, int]] = []
    time = -1

    def end(tensor: int, begin: int, is_near: bool) -> None:
        if not is_near or time - begin > stays[tensor]:
            blocks.append((begin, time, graph.in_pool_bytes[tensor]))

    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind not in (COMPUTE, RECOMPUTE):
            if index in first:
                ended[index] = first.pop(index)
            continue
        for tensor, taken_over in made.get(step, ()):
            begin, is_near = ended.pop(taken_over, (time + 1, True))
            first[tensor] = begin, is_near and tensor in stays
        for tensor, lived in ended.items():
            end(tensor, *lived)
        ended.clear()
        time += 1
        if scratch[index]:
            blocks.append((time, time, int(scratch[index])))
    for tensor, lived in (ended | first).items():
        end(tensor, *lived)
    begin, last, size = np.array(blocks, np.int64).reshape(-1, 3).T
    return begin, last, size


def _near_for(graph: StepGraph) -> dict[int, int]:
    """How long a value stays in the chip's own memory, by tensor."""
    if not graph.near:
        return {}
    made, read = {}, {}
    for time, operation in enumerate(graph.operations):
        made.update(dict.fromkeys(operation.outputs, time))
        read.update(dict.fromkeys(operation.inputs, time))
    return {t: read.get(t, made[t]) - made[t] + _STAYS_NEAR for t in graph.near}
