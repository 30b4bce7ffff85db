"""TPU heap: what XLA:TPU is expected to need for a schedule.

XLA:TPU places buffers of main memory in the order in which they begin, each in the
smallest gap, like an allocator at run time: what a step needs is what it keeps alive and
the gaps in between. This is the allocator that Coop (section 2)
plans for. Its outcome is sensitive to what is kept near (`coop_jax.near_memory`) and to
the order of what begins and ends together, both of which XLA decides: so the plan is packed
for several guesses at the first, as it is and with that order shaken. What XLA is expected
to need lies between the plan's own order and the least of all results, which of all
that was tried was nearest over ten networks. How far they lie apart says how much that is
worth.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from coop_jax import _ext
from coop_jax.graph import StepGraph
from coop_jax.lifetimes import Lifetimes, lifetimes
from coop_jax.near_memory import NearMemory, far_spans
from coop_jax.plan import COMPUTE, RECOMPUTE, Schedule

# How long values wait near, in times of their copy, and for what part of the near memory
# there is room: what XLA reserves of it and loses between blocks is not known.
_GUESSES = tuple(
    NearMemory(room, most_copies) for most_copies in (64, 100) for room in (0.9, 1.0)
)
_SHAKEN = 4  # orders, for every guess
_SHAKEN_BY = 1  # operations; what begins or ends further apart XLA rarely exchanges
_LEAST = 0.1  # of the results: those beyond are luck


@dataclasses.dataclass(frozen=True)
class ExpectedHeap:
    """What the heap is expected to take.

    Attributes:
        bytes: halfway between the plan's own order and the least of the results.
        spread_bytes: half the standard deviation over all of them.
    """

    bytes: int
    spread_bytes: int


def expected_heap(graph: StepGraph, schedule: Schedule) -> ExpectedHeap:
    """What XLA:TPU is expected to need for the tensors and workspaces of a schedule."""
    lives = lifetimes(graph, schedule)
    random = np.random.default_rng(0)

    def packed(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
        return _ext.xla_heap_bytes(
            first, last, size, alignment=schedule.alignment, by_time=True
        )

    as_planned, peaks = [], []
    for near in _GUESSES:
        first, last, size = _blocks(graph, schedule, lives, near)
        alive = _most_alive(first, last, size)
        as_planned.append(packed(first, last, size))
        for _ in range(_SHAKEN):
            begin = first + random.integers(-_SHAKEN_BY, _SHAKEN_BY + 1, len(size))
            end = np.maximum(begin, last + random.integers(0, _SHAKEN_BY + 1, len(size)))
            order = random.permutation(len(size))
            peaks.append(max(alive, packed(begin[order], end[order], size[order])))
    peaks += as_planned
    expected = (np.median(as_planned) + np.quantile(peaks, _LEAST)) / 2
    return ExpectedHeap(int(expected), int(np.std(peaks)) // 2)


def bytes_alive(graph: StepGraph, schedule: Schedule) -> int:
    """The most bytes that a schedule keeps alive in main memory at once.

    XLA needs hardly more for a step as written: up to the peak, where the forward pass
    ends, it frees little, and so leaves no gaps.
    """
    return _most_alive(*blocks_in_main_memory(graph, schedule))


def _most_alive(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
    change = np.zeros(max(last, default=0) + 2, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, last + 1, -size)
    return int(np.cumsum(change).max())


def blocks_in_main_memory(graph: StepGraph, schedule: Schedule) -> np.ndarray:
    """First and last execution, and bytes, of what lies in main memory."""
    return _blocks(graph, schedule, lifetimes(graph, schedule), _GUESSES[0])


def _blocks(
    graph: StepGraph, schedule: Schedule, lives: Lifetimes, near: NearMemory
) -> np.ndarray:
    blocks: list[list[int]] = []
    # Blocks that last to their version's end, where another version may take them over.
    ended: dict[tuple[int, int], list[int]] = {}
    taken_over = _taken_over(schedule)
    for version, span in zip(lives.versions, far_spans(graph, lives, near), strict=True):
        if span is None:
            continue
        first, last = span
        old = taken_over.get((version.first, version.tensor), -1)
        block = ended.pop((old, first - 1), None) if first == version.first else None
        if block is None:
            block = [first, last, graph.in_pool_bytes[version.tensor]]
            blocks.append(block)
        block[1] = last
        if last == version.last:
            ended[version.tensor, last] = block
    blocks += [[at, at, n] for at, n in enumerate(lives.workspace_bytes.tolist()) if n]
    first, last, size = np.array(blocks, np.int64).reshape(-1, 3).T
    begins = _begin_together(graph, lives)
    return np.stack([begins[first], begins[last], size])


def _begin_together(graph: StepGraph, lives: Lifetimes) -> np.ndarray:
    """By execution the first of those that one fusion of XLA's runs."""
    made_at = np.array([-1, *(graph.made_at[operation] for operation in lives.operation)])
    is_next = (made_at[1:] == made_at[:-1]) & (made_at[1:] >= 0)
    number = np.arange(len(is_next))
    return np.maximum.accumulate(np.where(is_next, 0, number))


def _taken_over(schedule: Schedule) -> dict[tuple[int, int], int]:
    """The tensor whose block a tensor takes over, by execution and the new tensor."""
    execution = np.cumsum(np.isin(schedule.steps[:, 0], (COMPUTE, RECOMPUTE))) - 1
    return {
        (int(execution[step]), tensor): old
        for step, tensor, _, old in schedule.placements.tolist()
        if old >= 0
    }
