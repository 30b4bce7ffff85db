"""Retention cut: the values to keep at a point of a program; the rest is made again.

What is kept takes bytes, what runs again has a price in bytes; the cheapest choice is a
minimum cut between the equations before the point and the readers after it, as in PyTorch's
partitioner of forward and backward graphs (torch/_functorch/partitioners.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_matrix

from coop_jax.base._compat import Literal
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.program import Program, reads, writes

# SciPy's flows are 32-bit; all bytes together are scaled to half of this.
_UNBOUNDED = 2**30


def minimum_cut(
    program: Program,
    stored: StoredValues,
    after: int,
    price: Callable[[int], float],
    anyway: Collection[Any] = (),
    to_store: Callable[[Any], float] = lambda v: 0.0,
) -> tuple[Any, ...]:
    """The cheapest values to keep, from which all that is read late can be made; of equally
    cheap ones those that are nearest to the readers.

    Every value has an edge of its bytes from its node 2k to 2k + 1. What runs again at a
    price is the source's by an edge of that, what is read late the sink's.

    Arguments:
        program: the step.
        stored: what XLA stores of it.
        after: the index of the last equation before the point.
        price: bytes that running an equation again is worth, by index; infinite where it
            may not run again.
        anyway: values that are kept in any case, and are not among the result.
        to_store: bytes that storing a value is worth beyond those that it takes.
    """
    early = {v: i for i, eqn in enumerate(program.eqns[: after + 1]) for v in writes(eqn)}
    values = [v for v in early if v not in anyway]
    number = {v: k for k, v in enumerate(values)}
    source, sink = 2 * len(values), 2 * len(values) + 1
    results = {v for v in program.outvars if not isinstance(v, Literal)}
    sizes = [0 if v in results else stored.bytes_of(v) + to_store(v) for v in values]
    unit = 1 + int(sum(size for size in sizes if size < math.inf)) // (_UNBOUNDED // 2)
    edges: dict[tuple[int, int], int] = {}
    for k, v in enumerate(values):
        # A result is there in any case.
        edges[2 * k, 2 * k + 1] = (
            0 if v in results else int(min(_UNBOUNDED, max(1, sizes[k] / unit)))
        )
        cost = price(early[v])
        if cost:
            edges[source, 2 * k] = int(min(_UNBOUNDED, 1 + cost / unit))
        if cost == math.inf:
            continue
        for operand in reads(program.eqns[early[v]]):
            if operand in number:
                edges[2 * number[operand] + 1, 2 * k] = _UNBOUNDED
    for v in read_late(program, after, number):
        edges[2 * number[v] + 1, sink] = _UNBOUNDED
    near = _sink_side(edges, source, sink)
    return tuple(v for k, v in enumerate(values) if 2 * k + 1 in near and 2 * k not in near)


def read_late(program: Program, after: int, early: Collection[Any]) -> set[Any]:
    """Those of the values made before a point that equations after it read."""
    return {v for eqn in program.eqns[after + 1 :] for v in reads(eqn) if v in early}


def _sink_side(edges: dict[tuple[int, int], int], source: int, sink: int) -> set[int]:
    """The nodes from which the sink can be reached once the flow is at its maximum."""
    rows, columns = zip(*edges, strict=True) if edges else ((), ())
    capacities = np.array(list(edges.values()), np.int32)
    graph = csr_matrix((capacities, (rows, columns)), shape=(sink + 1, sink + 1))
    left = graph - csgraph.maximum_flow(graph, source, sink).flow
    left.data = (left.data > 0).astype(np.int32)
    left.eliminate_zeros()
    reaching = csgraph.breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    return set(reaching.tolist())
