"""Unread executions: those of a plan whose results nothing reads before they are dropped.

A plan runs every operation at its turn. Where its results are evicted before anything
reads them, it runs once more when they are needed, and the first time was for nothing: XLA
removes it, with all that was run for it alone. So it is no work, and what runs later is no
recomputation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule, Execution, returned


def read_executions(graph: StepGraph, executions: Sequence[Execution]) -> list[Execution]:
    """The executions whose results are read, by others of these or as results of the step,
    in order; and those with side effects."""
    eqns, found, needed = graph.program.eqns, [], returned(graph)
    for execution in reversed(executions):
        operation = graph.operations[execution.operation]
        has_effects = any(eqns[index].effects for index in operation.equations)
        if has_effects or not needed.isdisjoint(execution.makes):
            found.append(execution)
            needed.difference_update(execution.makes)
            needed.update(operation.inputs)
    return found[::-1]


def run_again(read: Sequence[Execution]) -> list[Execution]:
    """The executions that compute what was computed before, of those that are read."""
    seen: set[int] = set()
    again = []
    for execution in read:
        if execution.operation in seen:
            again.append(execution)
        seen.add(execution.operation)
    return again


def seconds_of_read(
    graph: StepGraph, schedule: AnySchedule, executions: Sequence[Execution]
) -> float:
    """Modelled time of recomputation, of what is read alone."""
    read = read_executions(graph, executions)
    if len(read) == len(executions):
        return schedule.statistics.recompute_seconds
    seconds = graph.core.op_seconds
    return math.fsum(float(seconds[e.operation]) for e in run_again(read))


def overhead_of_read(
    graph: StepGraph, schedule: AnySchedule, executions: Sequence[Execution]
) -> float:
    """Modelled time of a schedule relative to no recomputation, of what is read alone."""
    statistics = schedule.statistics
    if not statistics.compute_seconds:
        return statistics.compute_overhead
    again = seconds_of_read(graph, schedule, executions)
    return (statistics.compute_seconds + again) / statistics.compute_seconds
