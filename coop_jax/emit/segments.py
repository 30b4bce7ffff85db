"""Segments: the positions of the fences of a schedule, and the operands of each.

A fence keeps a recomputation apart from the first computation and orders it after the
operations that have to be finished before it. One fence per group of recomputations is
enough, and it needs few operands: the values that the next segment reads, and the *sinks*
of the last one (made there, not read there), so that all operations before the fence are
done when it is passed. Fencing every live value gave the same memory for up to twelve
times the operands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import (
    RECOMPUTE,
    AnySchedule,
    Execution,
    decoded,
    executions,
    returned,
)
from coop_jax.trace.costs import aval_bytes

# Freed bytes that are worth a fence, as a part of a plan's maximum of live bytes.
NOTICEABLE = 1 / 16


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Executions between two fences; `fenced` tensors pass through the fence before."""

    executions: tuple[Execution, ...]
    fenced: tuple[int, ...]


def cut(
    graph: StepGraph,
    schedule: AnySchedule,
    *,
    fence_free_inputs: bool,
    is_guarded: bool = True,
    also_before: Collection[int] = (),
) -> list[Segment]:
    """The segments that a schedule is cut into, in order.

    Arguments:
        graph, schedule: the schedule and the graph that it was planned on.
        fence_free_inputs: passing an input that is not donated through a fence costs
            nothing on this platform: there is no aliased call that must copy it.
        is_guarded: memory fences are added as well; see `Backend.has_guards`.
        also_before: numbers of executions that further segments begin with.
    """
    risky = _risky(graph, schedule) if is_guarded else set()
    groups = _groups(graph, executions(graph, schedule), risky.union(also_before))
    fenced = _operands(graph, groups, fence_free_inputs)
    return [Segment(tuple(g), f) for g, f in zip(groups, fenced, strict=True)]


def executions_in(segments: Sequence[Segment]) -> list[Execution]:
    """The executions of all segments, in order."""
    return [execution for segment in segments for execution in segment.executions]


def counts_without_guards(graph: StepGraph, schedule: AnySchedule) -> list[int]:
    """Numbers of executions by segment, of a schedule that is cut without memory fences."""
    return [len(group) for group in _groups(graph, executions(graph, schedule), ())]


def _risky(graph: StepGraph, schedule: AnySchedule) -> set[int]:
    """Numbers of the executions that need a memory fence before them.

    Between two fences XLA runs operations in its own order, and may free late the values
    that the plan frees early: XLA:GPU merges the operations that join the branches of
    several residual blocks into one fusion at their end. So a fence is placed before the
    freed bytes could lift the live bytes above the plan's maximum, once they are a
    noticeable part of it.
    """
    size = graph.in_pool_bytes
    limit = schedule.statistics.max_live_bytes
    risky: set[int] = set()
    number, live, freed = 0, 0, 0
    was_planned = False  # Before the first recomputation, the order is that of XLA.
    for step in decoded(schedule):
        if step.runs:
            was_planned |= step.kind == RECOMPUTE
            live += sum(size[tensor] for tensor, _ in step.placed)
            if was_planned and freed > NOTICEABLE * limit and live + freed > limit:
                risky.add(number)
                freed = 0
            number += 1
        else:
            live -= size[step.index]
            freed += size[step.index]
    return risky


def _groups(
    graph: StepGraph, executions: list[Execution], risky: Collection[int]
) -> list[list[Execution]]:
    """The executions by segment. A new group starts with a run of recomputations, wherever
    a tensor would otherwise have two versions in one group (XLA would merge them) or an
    expansion two readers (XLA would store it), and before every execution that is risky."""
    groups: list[list[Execution]] = [[]]
    touched: set[int] = set()
    expanded: set[Any] = set()
    last_was_recompute = False
    for number, execution in enumerate(executions):
        expansions = graph.expansions.get(execution.operation, frozenset())
        if (
            number in risky
            or not expanded.isdisjoint(expansions)
            or (
                execution.is_recompute
                and (not last_was_recompute or not touched.isdisjoint(execution.makes))
            )
        ):
            groups.append([])
            touched, expanded = set(), set()
        groups[-1].append(execution)
        expanded |= expansions
        touched.update(graph.operations[execution.operation].inputs, execution.makes)
        last_was_recompute = execution.is_recompute
    return groups


def _operands(
    graph: StepGraph, groups: list[list[Execution]], fence_free_inputs: bool
) -> list[tuple[int, ...]]:
    """The tensors that pass the fence before every group."""
    # Backwards: the tensors whose present version is read after each group.
    read_later = returned(graph)
    later: list[set[int]] = []
    for group in reversed(groups):
        later.append(set(read_later))
        for execution in reversed(group):
            read_later.difference_update(execution.makes)
            read_later.update(graph.operations[execution.operation].inputs)
    later.reverse()

    fenced: list[tuple[int, ...]] = []
    sinks: set[int] = set()
    for k, group in enumerate(groups):
        reads = _reads_from_before(graph, group)
        if not fence_free_inputs:
            reads = _without_free_inputs(graph, group, reads)
        passing = (t for t in reads | sinks if can_pass(graph.tensors[t].aval))
        fenced.append(tuple(sorted(passing)) if k else ())
        made, read = set(), set()
        for execution in group:
            read.update(graph.operations[execution.operation].inputs)
            made.update(execution.makes)
        sinks = (made - read) & later[k]
    return fenced


def can_pass(aval: Any) -> bool:
    """Whether a fence can take a value of this type: tokens and references are no values,
    and an empty array has no bytes to pass."""
    return _compat.is_array(aval) and aval.size > 0


def _reads_from_before(graph: StepGraph, group: list[Execution]) -> set[int]:
    made: set[int] = set()
    reads: set[int] = set()
    for execution in group:
        reads.update(set(graph.operations[execution.operation].inputs) - made)
        made.update(execution.makes)
    return reads


def _without_free_inputs(
    graph: StepGraph, group: list[Execution], reads: set[int]
) -> set[int]:
    """The reads without inputs that are not donated: an aliased call would copy them.

    For a recomputation that reads nothing else one of them is kept, the smallest: without
    it nothing would distinguish the recomputation from the first computation. So it is
    with expansions, which may be made of them alone, and which are larger.
    """
    free = {t for t in reads if t < graph.num_inputs and not graph.donated[t]}
    for execution in group:
        if execution.operation in graph.expansions:
            free.difference_update(graph.operations[execution.operation].inputs)
    kept = reads - free
    for execution in group:
        inputs = graph.operations[execution.operation].inputs
        if execution.is_recompute and inputs and free.issuperset(inputs):
            if kept.isdisjoint(inputs):
                kept.add(min(inputs, key=lambda t: (aval_bytes(graph.tensors[t].aval), t)))
    return kept
