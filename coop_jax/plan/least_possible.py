"""Least possible: bytes that no plan can go below, and the operation that needs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from coop_jax import _ext
from coop_jax.base.budget import format_bytes
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import PlanOptions

_LOOPS = ("scan", "while", "cond")
# A loop is the cause where at least this part of the bytes needed is its own.
_TO_BLAME = 0.5


@dataclasses.dataclass(frozen=True)
class Blocking:
    """The reason that a smaller budget is impossible.

    Attributes:
        operation: the operation with its source line; None: arguments and results alone.
        advice: a sentence on how to need less; empty where there is none.
    """

    operation: str | None
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class Least:
    """Bytes that no plan of a step can go below, and the reason."""

    bytes: int
    blocking: Blocking


def least_possible(
    graphs: Sequence[StepGraph], options: PlanOptions, fixed_bytes: int, near_bytes: int
) -> Least:
    """The planner's lower bound of a step, in any of its orders.

    Arguments:
        fixed_bytes: bytes of arguments and results.
        near_bytes: bytes of memory that is not counted and that XLA may use instead (VMEM).
    """
    bounds = [(_ext.lower_bound(g.core, options.alignment), g) for g in graphs]
    (pool_bytes, operation), graph = min(bounds, key=lambda bound: bound[0][0])
    pool_bytes = max(0, pool_bytes - near_bytes)
    if pool_bytes == 0:
        return Least(fixed_bytes, Blocking(None))
    return Least(fixed_bytes + pool_bytes, blocking_at(graph, operation, pool_bytes))


def least_pool_bytes(graphs: Sequence[StepGraph], options: PlanOptions) -> int:
    """The planner's lower bound of a step's pool, in any of its orders."""
    return min(_ext.lower_bound(g.core, options.alignment)[0] for g in graphs)


def blocking_at(graph: StepGraph, operation: int, pool_bytes: int) -> Blocking:
    """The reason that a smaller pool is impossible, from the planner's operation.

    Arguments:
        operation: -1 for the arguments together, the number of operations for the results.
    """
    if not graph.operations:
        return Blocking(None)
    operation = min(max(operation, 0), len(graph.operations) - 1)
    # What is carried has one buffer, and counts as operand and as result.
    loop, loop_bytes = operation, min(_bytes_of(graph, operation), pool_bytes)
    if not _is_loop(graph, operation):
        among = ((kept, loop) for loop, kept in _kept_of_loops(graph, operation))
        loop_bytes, loop = max(among, default=(0, -1))
        if loop_bytes < _TO_BLAME * pool_bytes or loop < 0:
            return Blocking(graph.describe(operation))
    advice = (
        f" It is a loop or a `cond` that takes {loop_bytes} bytes "
        f"({format_bytes(loop_bytes)}) for what it reads, makes and keeps inside, and "
        "`coop_jax` found no less: it plans what an iteration or a branch has alive at "
        "once, and of a `scan` what it keeps for the loop of its gradient."
    )
    return Blocking(graph.describe(loop), advice)


def _is_loop(graph: StepGraph, operation: int) -> bool:
    indices = graph.operations[operation].equations
    return any(graph.program.eqns[i].primitive.name in _LOOPS for i in indices)


def _bytes_of(graph: StepGraph, operation: int) -> int:
    op = graph.operations[operation]
    tensors = {*op.inputs, *op.outputs}
    workspace_bytes = int(graph.core.arrays()["op_workspace_bytes"][operation])
    return sum(graph.in_pool_bytes[t] for t in tensors) + workspace_bytes


def _kept_of_loops(graph: StepGraph, operation: int) -> Iterator[tuple[int, int]]:
    """Loops before an operation, each with the bytes of its results that are read later.

    These are the stacked values that the loop of the gradient needs.
    """
    read_later = {t for op in graph.operations[operation:] for t in op.inputs}
    for loop, op in enumerate(graph.operations[:operation]):
        if _is_loop(graph, loop):
            yield loop, sum(graph.in_pool_bytes[t] for t in op.outputs if t in read_later)
