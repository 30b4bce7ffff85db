"""Decoded: a schedule's two tables as steps, read in one place.

A schedule is a table of steps (kind, and operation or tensor) and a table of placements
(step, tensor, offset, tensor whose block is taken over). Other modules read the
operations that run, the tensors that they make and the ends of blocks here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.graph.step_graph import StepGraph

# Kinds of steps in `Schedule.steps`.
COMPUTE, RECOMPUTE, EVICT, FREE = range(4)


class Statistics(Protocol):
    """The statistics that any schedule has."""

    @property
    def compute_seconds(self) -> float: ...
    @property
    def recompute_seconds(self) -> float: ...
    @property
    def max_live_bytes(self) -> int: ...
    @property
    def compute_overhead(self) -> float: ...


class AnySchedule(Protocol):
    """A schedule of the core, or one that the core only validates.

    Attributes:
        steps: int64[n, 2], kind and operation (that runs) or tensor (whose block ends).
        placements: int64[m, 4], step, tensor, offset in bytes, and the tensor whose block
            it takes over or -1; ordered by step.
        alignment: of offsets and sizes, bytes.
    """

    @property
    def steps(self) -> np.ndarray: ...
    @property
    def placements(self) -> np.ndarray: ...
    @property
    def alignment(self) -> int: ...
    @property
    def statistics(self) -> Statistics: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        kind: `COMPUTE`, `RECOMPUTE`, `EVICT` or `FREE`.
        index: the operation that runs, or the tensor whose block ends.
        placed: tensors that get a block, each with the tensor that it is taken over from
            or -1.
    """

    kind: int
    index: int
    placed: tuple[tuple[int, int], ...]

    @property
    def runs(self) -> bool:
        """Whether the step is the execution of an operation."""
        return self.kind in (COMPUTE, RECOMPUTE)


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """One execution of an operation; `makes` are the tensors whose value it provides."""

    operation: int
    is_recompute: bool
    makes: tuple[int, ...]


def decoded(schedule: AnySchedule) -> Iterator[Step]:
    """The steps of a schedule in their order."""
    placed: dict[int, list[tuple[int, int]]] = {}
    for step, tensor, _, old in schedule.placements.tolist():
        placed.setdefault(step, []).append((tensor, old))
    for number, (kind, index) in enumerate(schedule.steps.tolist()):
        yield Step(kind, index, tuple(placed.get(number, ())))


def executions(graph: StepGraph, schedule: AnySchedule) -> list[Execution]:
    """The executions of a schedule, in order.

    An operation that runs for the first time provides all its results, stored in the pool
    or not; a recomputation provides the results that it places.
    """
    found = []
    for step in decoded(schedule):
        if step.kind == COMPUTE:
            makes = graph.operations[step.index].outputs
        elif step.kind == RECOMPUTE:
            makes = tuple(tensor for tensor, _ in step.placed)
        else:
            continue
        found.append(Execution(step.index, step.kind == RECOMPUTE, makes))
    return found


def returned(graph: StepGraph) -> set[int]:
    """The tensors that the step returns."""
    results = graph.program.outvars
    return {graph.index_of[v] for v in results if not isinstance(v, Literal)}
