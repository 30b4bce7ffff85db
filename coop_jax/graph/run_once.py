"""What runs once: results of operations that may not run again, kept for what is made of
them.

What an operation with effects, a callback or a primitive of another library returns cannot
be made again, and neither can anything that is made from it, once it is gone. A batch that
a callback returns, or the numbers of the entries that a step gathers, are read at the
beginning of a step: freed there, they would take the way back from all that comes after
them. Kept, they are bytes that the step as written has not got; so it is planned in both
ways.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from coop_jax import _ext
from coop_jax.graph.step_graph import StepGraph


def keeping_what_runs_once(graph: StepGraph) -> StepGraph:
    """The graph with results of what runs once kept to its end, where they are read less
    long than what is made of them; the same object if there are none."""
    arrays = graph.core.arrays()
    kept = _read_less_long(graph, arrays["op_recomputable"])
    is_kept = np.isin(np.arange(len(graph.tensors)), kept)
    is_kept &= ~(arrays["tensor_external"] | arrays["tensor_pinned"])
    if not np.any(is_kept & ~arrays["tensor_output"]):
        return graph
    arrays["tensor_output"] = arrays["tensor_output"] | is_kept
    return dataclasses.replace(graph, core=_ext.Graph(**arrays))


def _read_less_long(graph: StepGraph, may_run_again: np.ndarray) -> list[int]:
    """Results in the pool of operations that may not run again, read for the last time
    before something that is made of them."""
    last_read = [-1] * len(graph.tensors)
    for k, op in enumerate(graph.operations):
        for t in op.inputs:
            last_read[t] = k
    # The last read of what can be made again from a value, and of the value itself.
    last_needed = [*last_read]
    for op, again in zip(reversed(graph.operations), may_run_again[::-1], strict=True):
        if again:
            needed = max((last_needed[t] for t in op.outputs), default=-1)
            for t in op.inputs:
                last_needed[t] = max(last_needed[t], needed)
    return [
        t
        for op, again in zip(graph.operations, may_run_again, strict=True)
        for t in op.outputs
        if not again and graph.in_pool_bytes[t] and last_read[t] < last_needed[t]
    ]
