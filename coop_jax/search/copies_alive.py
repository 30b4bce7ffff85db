"""Copies alive: bytes of gathered values that XLA:CPU keeps while a plan runs.

A copy of a value for all devices counts as scratch of each operation that reads it. But
XLA:CPU makes it once for all that read it between two fences: of a weight right behind the
first fence, of a value as soon as it is made; and keeps it for the last of them. In the
first segment, which mostly ends in the backward pass, gathered weights of all layers are
there from the beginning. Where the fences stand is known as soon as there is a plan: so the
copies are counted then, and the plan is made again with them before anything is compiled.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from coop_jax.base.sweep import bytes_over_time
from coop_jax.emit.segments import Segment
from coop_jax.graph.resharded_copies import ReshardedCopy
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import Program, reads, writes


@dataclasses.dataclass(frozen=True)
class LiveWithCopies:
    """A plan with the copies between its fences.

    Attributes:
        most_bytes: the most bytes that are alive at once.
        scratch_bytes: with which the plan would have counted them, by equation; where it
            has counted enough, none.
    """

    most_bytes: int
    scratch_bytes: Mapping[int, int]


def live_with_copies(
    graph: StepGraph,
    schedule: AnySchedule,
    segments: Sequence[Segment],
    as_read: Mapping[int, int],
) -> LiveWithCopies:
    """The live bytes of a schedule that was cut into segments.

    Arguments:
        graph: the graph that it was planned on, some copies counted as scratch or not.
        as_read: scratch of operations before any was learnt from an executable, by anchor:
            that has the copies in it.
    """
    lives = lifetimes(graph, schedule)
    alive = copies_alive(graph, segments)
    anchors = [graph.operations[k].anchor for k in lives.operation]
    learnt = np.array([graph.scratch_of(k) for k in lives.operation], np.int64)
    needed = np.maximum(learnt, [as_read.get(i, 0) for i in anchors] + alive)
    values = lives.live_bytes(graph.in_pool_bytes) - lives.workspace_bytes
    scratch: dict[int, int] = {}
    for at in np.flatnonzero(needed > lives.workspace_bytes).tolist():
        scratch[anchors[at]] = max(scratch.get(anchors[at], 0), int(needed[at]))
    return LiveWithCopies(int((values + needed).max(initial=0)), scratch)


def copies_alive(graph: StepGraph, segments: Sequence[Segment]) -> np.ndarray:
    """Bytes of copies that are alive during each execution and not read by it, int64."""
    operations = _operations_of_equations(graph)
    early = _of_arguments(graph.program)
    spans: list[tuple[int, int, int]] = []
    begin = 0
    for segment in segments:
        executions = [execution.operation for execution in segment.executions]
        for copy in graph.stored.resharded:
            span = _span(copy, executions, operations, early)
            spans += [(begin + at, begin + end, copy.size_bytes) for at, end in span]
        begin += len(executions)
    first, last, size = np.array(spans, np.int64).reshape(-1, 3).T
    return bytes_over_time(first, last, size, begin)


def _span(
    copy: ReshardedCopy,
    executions: Sequence[int],
    operations: Mapping[int, frozenset[int]],
    early: frozenset[int],
) -> list[tuple[int, int]]:
    """The intervals, in executions of a segment, in which a copy is alive, without its
    readers."""
    readers = frozenset[int]().union(*(operations[i] for i in copy.readers))
    read_at = [at for at, operation in enumerate(executions) if operation in readers]
    if not read_at:
        return []
    makers = operations[copy.made_by]
    made = (at for at, operation in enumerate(executions) if operation in makers)
    # A value from before the fence is gathered again when it is read.
    made_at = 0 if copy.made_by in early else next(made, read_at[0])
    if copy.is_passed_on:
        return [(made_at, made_at)] if made_at < read_at[0] else []
    ends = [made_at - 1, *(at for at in read_at if at >= made_at)]
    gaps = itertools.pairwise(ends)
    return [(a + 1, b - 1) for a, b in gaps if a + 1 <= b - 1]


def _operations_of_equations(graph: StepGraph) -> Mapping[int, frozenset[int]]:
    """The operations that evaluate an equation, by its number."""
    found: dict[int, set[int]] = defaultdict(set)
    for number, operation in enumerate(graph.operations):
        for index in operation.equations:
            found[index].add(number)
    return defaultdict(frozenset, {i: frozenset(found[i]) for i in found})


def _of_arguments(program: Program) -> frozenset[int]:
    """The equations that make something of an argument alone at no considerable cost, and
    -1, the arguments themselves: what they make may be gathered at once."""
    known = {*program.constvars, *program.invars}
    found = {-1}
    for index, eqn in enumerate(program.eqns):
        operands = {*reads(eqn)}
        if is_fusible(eqn) and len(operands) == 1 and known.issuperset(operands):
            found.add(index)
            known.update(writes(eqn))
    return frozenset(found)
