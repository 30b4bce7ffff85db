"""Narrowed: float32 values that a plan keeps as bfloat16 from one segment to the next.

A segment reads its own values as they were computed, in float32. Values that
`backends.tpu.bf16_storage` allows to narrow are rounded for later segments, unless an
equation there reads them in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from coop_jax.base import _compat
from coop_jax.emit.segments import Segment
from coop_jax.graph.step_graph import StepGraph
from coop_jax.graph.stored_values import Narrowed

WHOLE, HALF = np.dtype(np.float32), np.dtype(jnp.bfloat16)


def kept_narrowed(
    graph: StepGraph, segments: Sequence[Segment], narrowed: Narrowed
) -> frozenset[tuple[int, int]]:
    """The bfloat16-narrowed values, as pairs (execution, tensor made there): all that may
    be narrowed and that no equation behind a fence reads in float32."""
    readers = {graph.index_of[v]: r for v, r in narrowed.items() if v in graph.index_of}
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


def narrowing_equation(value: Any, like: Any) -> Any:
    """The equation that narrows a value to bfloat16, with the source of `like`."""
    return _compat.convert_equation(value, HALF, like)


def widening_equation(value: Any, like: Any) -> Any:
    """The equation that widens a narrowed value to float32, with the source of `like`."""
    return _compat.convert_equation(value, WHOLE, like)
