"""List schedule: the order in which XLA runs the operations between two fences.

XLA orders a step so that little is alive, and only a fence holds it back. So of what could
run next, in a segment without guards, the one comes first that frees most beyond what it
makes: that is XLA's list scheduler, one of those it takes the best of, on our operations.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.live_ranges import Lifetimes, Version


def in_free_order(graph: StepGraph, lives: Lifetimes, counts: Sequence[int]) -> Lifetimes:
    """The lifetimes of a schedule whose segments are run as XLA orders them.

    Arguments:
        counts: executions of every segment.
    """
    segment = np.repeat(np.arange(len(counts)), counts)
    begins = np.concatenate([[0], np.cumsum(counts)]).tolist()
    ordered = _Ordered(graph, lives, segment)
    order: list[int] = []
    for first, end in itertools.pairwise(begins):
        order += ordered.segment(first, end)
    return _renumbered(lives, order, segment)


class _Ordered:
    def __init__(self, graph: StepGraph, lives: Lifetimes, segment: np.ndarray) -> None:
        size = graph.in_pool_bytes
        count = len(lives.operation)
        self._reads: list[list[int]] = [[] for _ in range(count)]
        self._made_bytes = [0] * count
        self._size = [size[version.tensor] for version in lives.versions]
        self._ends_in = [segment[version.last] for version in lives.versions]
        self._segment = segment
        for number, version in enumerate(lives.versions):
            self._made_bytes[version.first] += size[version.tensor]
            for use in version.uses:
                if use != version.first:
                    self._reads[use].append(number)
        # By all tensors, also those that take no memory.
        self._after: list[set[int]] = [set() for _ in range(count)]
        maker: dict[int, int] = {}
        for now, operation in enumerate(lives.operation):
            inputs = graph.operations[operation].inputs
            self._after[now].update(maker[t] for t in inputs if t in maker)
            maker.update(dict.fromkeys(graph.operations[operation].outputs, now))

    def segment(self, first: int, end: int) -> list[int]:
        """The executions of a segment in XLA's order."""
        waits_for = {
            k: {m for m in self._after[k] if m >= first} for k in range(first, end)
        }
        waiting: dict[int, list[int]] = {}
        for execution, makers in waits_for.items():
            for maker in makers:
                waiting.setdefault(maker, []).append(execution)
        uses: dict[int, int] = {}
        for execution in range(first, end):
            for version in self._reads[execution]:
                uses[version] = uses.get(version, 0) + 1
        ready = [k for k, makers in waits_for.items() if not makers]
        order: list[int] = []

        def gain(execution: int) -> tuple[int, int]:
            freed = sum(
                self._size[version]
                for version in self._reads[execution]
                if uses[version] == 1 and self._ends_in[version] == self._segment[first]
            )
            return freed - self._made_bytes[execution], -execution

        while ready:
            execution = max(ready, key=gain)
            ready.remove(execution)
            order.append(execution)
            for version in self._reads[execution]:
                uses[version] -= 1
            for later in waiting.get(execution, []):
                waits_for[later].remove(execution)
                if not waits_for[later]:
                    ready.append(later)
        return order


def _renumbered(lives: Lifetimes, order: Sequence[int], segment: np.ndarray) -> Lifetimes:
    """The live ranges with the executions in another order."""
    now = np.empty(len(order), np.int64)
    now[list(order)] = np.arange(len(order))
    versions = []
    for version in lives.versions:
        uses = tuple(sorted(now[list(version.uses)].tolist()))
        ends_here = segment[version.last] == segment[version.uses[-1]]
        is_result = version.last == len(order) - 1
        last = uses[-1] if ends_here and not is_result else version.last
        versions.append(Version(version.tensor, int(now[version.first]), last, uses))
    return dataclasses.replace(
        lives,
        versions=tuple(sorted(versions, key=lambda v: (v.first, v.tensor))),
        operation=tuple(lives.operation[k] for k in order),
        workspace_bytes=lives.workspace_bytes[list(order)],
    )
