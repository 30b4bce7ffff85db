"""Walls: what keeps a heap high that is packed as XLA:TPU packs it.

An allocator at run time puts a block onto what is alive when it begins. If it stays for
long it is a wall: what lay below it leaves gaps, and what does not fit into them goes on
top. The logits of a language model, which wait for the gradient of the embedding, lie on
what the last layer keeps for its gradient so, and everything large until the end of the
step lies on them. The bytes that a plan has alive say nothing of it. So a plan is made
again with less room where its walls begin: they then lie lower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from coop_jax import _ext
from coop_jax.graph import StepGraph
from coop_jax.lifetimes import lifetimes
from coop_jax.plan import Schedule
from coop_jax.tpu_heap import blocks_in_main_memory

# Of the blocks that lie one on another below the highest, so many are looked at.
_MOST_WALLS = 4

Reserve = Mapping[int, int]
"""Bytes by operation that are to be free while it runs."""


def reserves_below(
    graph: StepGraph, schedule: Schedule, pool_bytes: int, too_much: int
) -> list[Reserve]:
    """Reserves with which the highest block may come to lie lower.

    Arguments:
        graph: what the schedule was planned on.
        pool_bytes: of the pool that the next plan is made for.
        too_much: by how much the highest block is too high.

    Returns:
        One for every block of those that hold it up, where that one begins; and all of
        them together.
    """
    first, last, size = blocks_in_main_memory(graph, schedule)
    if not len(size):
        return []
    size = -(-size // schedule.alignment) * schedule.alignment
    offset = _ext.xla_heap_offsets(first, last, size, alignment=schedule.alignment)
    lives = lifetimes(graph, schedule)
    live = lives.live_bytes(graph.in_pool_bytes)
    reserves: list[Reserve] = []
    for wall in _walls(first, last, size, offset)[:_MOST_WALLS]:
        execution = max(0, int(first[wall]))
        more = pool_bytes - int(live[execution]) + too_much
        reserve = {lives.operation[execution]: more}
        if more > 0 and reserve not in reserves:
            reserves.append(reserve)
    if len(reserves) > 1:
        reserves.append(joined(*reserves))
    return reserves


def joined(*reserves: Reserve) -> Reserve:
    """What fulfils all of them."""
    most: dict[int, int] = {}
    for reserve in reserves:
        for operation, size in reserve.items():
            most[operation] = max(most.get(operation, 0), size)
    return most


def with_reserve(graph: StepGraph, reserve: Reserve) -> StepGraph:
    """The graph in which operations need so much more scratch: for the planner alone."""
    if not reserve:
        return graph
    arrays = graph.core.arrays()
    scratch = arrays["op_workspace_bytes"].copy()
    for operation, size in reserve.items():
        scratch[operation] += size
    arrays["op_workspace_bytes"] = scratch
    return dataclasses.replace(graph, core=_ext.Graph(**arrays))


def _walls(
    first: np.ndarray, last: np.ndarray, size: np.ndarray, offset: np.ndarray
) -> list[int]:
    """The highest block, what it lies on, what that lies on, and so on."""
    end = offset + size
    walls = [int(end.argmax())]
    while offset[walls[-1]] > 0:
        block = walls[-1]
        is_below = (first <= first[block]) & (last >= first[block]) & (end <= offset[block])
        if not is_below.any():
            break
        walls.append(int(np.where(is_below, end, -1).argmax()))
    return walls
