"""Narrowed: values that a plan keeps in half precision from one segment to the next.

A segment reads what it made itself as it was made, in full precision. What
`backends.tpu.bf16_storage` allows is rounded for later segments, unless an equation there
reads it in full precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coop_jax.backends.tpu.bf16_storage import HALF, WHOLE, Rounded
from coop_jax.base import _compat
from coop_jax.emit.segments import Segment
from coop_jax.graph.step_graph import StepGraph


def kept_rounded(
    graph: StepGraph, segments: Sequence[Segment], rounded: Rounded
) -> frozenset[tuple[int, int]]:
    """What is kept rounded, as (execution, tensor made there): all that nobody behind a
    fence reads whole."""
    readers = {graph.index_of[v]: r for v, r in rounded.items() if v in graph.index_of}
    kept: set[tuple[int, int]] = set()
    made: dict[int, tuple[int, int]] = {}  # By tensor: its segment and execution.
    number = 0
    for at, segment in enumerate(segments):
        for execution in segment.executions:
            operation = graph.operations[execution.operation]
            for tensor in operation.inputs:
                if tensor not in made or made[tensor][0] == at:
                    continue
                if not readers[tensor].isdisjoint(operation.equations):
                    kept.discard((made[tensor][1], tensor))
            for tensor in readers.keys() & set(execution.makes):
                made[tensor] = at, number
                kept.add((number, tensor))
            number += 1
    return frozenset(kept)


def rounding_equation(value: Any, like: Any) -> Any:
    """The equation that rounds a value, standing where `like` does."""
    return _compat.convert_equation(value, HALF, like)


def widening_equation(value: Any, like: Any) -> Any:
    """The equation that makes a rounded value of its own type again."""
    return _compat.convert_equation(value, WHOLE, like)
