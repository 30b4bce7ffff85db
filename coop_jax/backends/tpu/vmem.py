"""VMEM: which values XLA:TPU keeps in the memory on the chip, and until when.

A TPU has some memory on the chip, and XLA moves values there and back while the step runs.
Between two uses a value stays near if it is not waited for much longer than a copy of it
takes, and if there is room; small values come first. Otherwise it lies in main memory from
the one use to the other. So it was read off compiled plans: on a v5e nearly everything that
waited for up to 64 times its copy stayed near where there was room for all, and nearly
nothing that waited for more than 128 times. XLA's own times are not known, so that limit
and the room that fragmentation leaves are given, and tried in several sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.live_ranges import Lifetimes

Span = tuple[int, int]
"""First and last execution."""


@dataclasses.dataclass(frozen=True)
class NearMemory:
    """The values that may stay near.

    Attributes:
        room: part of the target's near memory.
        most_copies: how long a value may wait, in times that copying it takes.
    """

    room: float
    most_copies: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Wait:
    """A version waits from one execution to another for its next use.

    `begin` is where it starts to take room: the one after `first`, unless it is made there.
    """

    version: int
    first: int
    begin: int
    last: int
    size: int
    copies: float


def far_spans(graph: StepGraph, lives: Lifetimes, near: NearMemory) -> list[Span | None]:
    """When every version of a schedule lies in main memory; None: never.

    To the end of the last wait that it does not stay near for, from the first one, or from
    right after it is made: that is when XLA begins to copy what it will not keep near.
    """
    room = int(near.room * graph.target.near_bytes)
    free = np.full(len(lives.operation), room, np.int64)
    spans: list[Span | None] = [None] * len(lives.versions)
    waits = _waits(graph, lives)
    for wait in sorted(waits, key=lambda wait: (wait.size, wait.copies, wait.first)):
        if wait.size <= room and wait.copies <= near.most_copies:
            window = free[wait.begin : wait.last + 1]
            if wait.size <= window.min():
                window -= wait.size
                continue
        first, last = spans[wait.version] or (wait.first, wait.last)
        spans[wait.version] = min(first, wait.first), max(last, wait.last)
    return [
        span if span is None else (min(span[0], version.first + 1), span[1])
        for version, span in zip(lives.versions, spans, strict=True)
    ]


def _waits(graph: StepGraph, lives: Lifetimes) -> Iterator[_Wait]:
    """The times between two uses of every version."""
    seconds = graph.core.op_seconds[list(lives.operation)]
    begins = np.concatenate([[0.0], np.cumsum(seconds)])
    for number, version in enumerate(lives.versions):
        size = graph.in_pool_bytes[version.tensor]
        copy = size / graph.target.bytes_per_second
        uses = {use for use in version.uses if use < version.last}
        stops = [version.first, *sorted(uses - {version.first}), version.last]
        for first, last in itertools.pairwise(stops):
            begin = first if first == version.first else first + 1
            waited = max(0.0, begins[last] - begins[first + 1])
            yield _Wait(number, first, begin, last, size, waited / copy)
