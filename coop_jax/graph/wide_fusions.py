"""Wide fusions: values that XLA evaluates in every reader from more than they are.

XLA:GPU evaluates the residual stream of a deep network anew in each layer, from the results
of all layers before it, which then have to be there together; and a sum over many layers in
one fusion. Where memory is short, the partial sum is stored instead, and what it was made
of can be freed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import is_elementwise, is_fusible
from coop_jax.trace.program import Program, writes


def partial_results(program: Program, stored: StoredValues) -> Mapping[int, Any]:
    """Values to store so that none is computed from more bytes than two of its size.

    A result, an argument or a constant takes no bytes of a plan and does not count.

    Arguments:
        program: the step.
        stored: what XLA stores of it.

    Returns:
        The values by the index of the equation that makes them.
    """
    external = {*program.constvars, *program.invars}
    external |= {v for v in program.outvars if not isinstance(v, Literal)}
    read_by: dict[Any, frozenset[Any]] = {v: frozenset() for v in external}
    found: dict[int, Any] = {}
    for index, eqn in enumerate(program.eqns):
        known = (read_by[v] for v in eqn.invars if not isinstance(v, Literal))
        read = frozenset().union(*known)
        for v in writes(eqn):
            if v in external:
                continue
            if not is_fusible(eqn) or v in stored.stored_bytes:
                read_by[v] = frozenset((v,))
                continue
            read_by[v] = read
            size = stored.bytes_of(v)
            if is_elementwise(eqn) and 2 * size < sum(
                min(size, stored.bytes_of(other)) for other in read
            ):
                found[index] = v
                read_by[v] = frozenset((v,))
    return found


def with_partial_results(program: Program, stored: StoredValues) -> StoredValues:
    """The same with the partial results of wide fusions stored; the same object if there
    are none."""
    found = partial_results(program, stored)
    if not found or stored.source != "compiled":  # By rules, XLA's fusions are not known.
        return stored
    more = {v: stored.bytes_of(v) for v in found.values()}
    return dataclasses.replace(
        stored, stored_bytes={**stored.stored_bytes, **more}, partial_results=found
    )
