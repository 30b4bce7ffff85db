"""TPU heap: what XLA:TPU is expected to need for a schedule.

XLA:TPU moves values between its main memory and the chip's own (`backends.tpu.vmem`).
It packs the values in main memory as XLA:CPU and XLA:GPU do, with the option that
`backends.tpu.compiler_options` sets: by size or by length of life, which leaves hardly any
gaps. Which values it keeps in VMEM is not known exactly, so the plan is packed for several
guesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from coop_jax import _ext
from coop_jax.backends.quirk import Quirk
from coop_jax.backends.tpu.chen_schedules import LayeredSchedule
from coop_jax.backends.tpu.list_schedule import in_free_order
from coop_jax.backends.tpu.quirks import LIST_SCHEDULE, VMEM
from coop_jax.backends.tpu.vmem import NearMemory, far_spans
from coop_jax.base.sweep import bytes_over_time
from coop_jax.emit.segments import counts_without_guards
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule, decoded
from coop_jax.plan.live_ranges import Lifetimes, lifetimes

# How long values wait near, in times of their copy, and for what part of the near memory
# there is room: what XLA reserves of it and loses between blocks is not known.
_GUESSES = tuple(
    NearMemory(room, most_copies) for most_copies in (64, 100) for room in (0.9, 1.0)
)
_NONE_NEAR = (NearMemory(0.0, 0.0),)


@dataclasses.dataclass(frozen=True)
class ExpectedHeap:
    """The bytes that the heap is expected to take.

    Attributes:
        bytes: the median over the guesses.
        spread_bytes: half the standard deviation over them.
    """

    bytes: int
    spread_bytes: int


def expected_heap(
    graph: StepGraph, schedule: AnySchedule, without: Collection[Quirk] = ()
) -> ExpectedHeap:
    """The bytes that XLA:TPU should need for the tensors and workspaces of a schedule.

    Layered plans are cut without guards and run as XLA likes: it tries several orders and
    takes the best. Here that is the plan's or the free one.

    Arguments:
        without: quirks of `backends.tpu.quirks` that are switched off.
    """
    orders = [lifetimes(graph, schedule)]
    if isinstance(schedule, LayeredSchedule) and LIST_SCHEDULE not in without:
        counts = counts_without_guards(graph, schedule)
        orders.append(in_free_order(graph, orders[0], counts))
    guesses = _guesses(without)
    found = (_packed(graph, schedule, lives, guesses) for lives in orders)
    return min(found, key=lambda expected: expected.bytes)


def _guesses(without: Collection[Quirk]) -> tuple[NearMemory, ...]:
    return _NONE_NEAR if VMEM in without else _GUESSES


def _packed(
    graph: StepGraph,
    schedule: AnySchedule,
    lives: Lifetimes,
    guesses: tuple[NearMemory, ...],
) -> ExpectedHeap:
    """The heap of one order of executions, packed for every guess."""
    packed = [
        _ext.xla_heap_bytes(
            *_blocks(graph, schedule, lives, near), alignment=schedule.alignment
        )
        for near in guesses
    ]
    return ExpectedHeap(int(np.median(packed)), int(np.std(packed)) // 2)


def bytes_alive(
    graph: StepGraph, schedule: AnySchedule, without: Collection[Quirk] = ()
) -> int:
    """The most bytes that a schedule keeps alive in main memory at once.

    XLA needs hardly more for a step as written: up to the peak, where the forward pass
    ends, it frees little, and so leaves no gaps.
    """
    return _most_alive(*blocks_in_main_memory(graph, schedule, without))


def _most_alive(first: np.ndarray, last: np.ndarray, size: np.ndarray) -> int:
    return int(bytes_over_time(first, last, size, max(last, default=0) + 1).max())


def blocks_in_main_memory(
    graph: StepGraph, schedule: AnySchedule, without: Collection[Quirk] = ()
) -> np.ndarray:
    """First and last execution, and bytes, of what lies in main memory."""
    lives = lifetimes(graph, schedule)
    return _blocks(graph, schedule, lives, _guesses(without)[0])


def _blocks(
    graph: StepGraph, schedule: AnySchedule, lives: Lifetimes, near: NearMemory
) -> np.ndarray:
    """Rows of first and last execution and bytes, of all that lies in main memory."""
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


def _taken_over(schedule: AnySchedule) -> dict[tuple[int, int], int]:
    """The tensor whose block a tensor takes over, by execution and the new tensor."""
    runs = (step for step in decoded(schedule) if step.runs)
    return {
        (now, tensor): old
        for now, step in enumerate(runs)
        for tensor, old in step.placed
        if old >= 0
    }
