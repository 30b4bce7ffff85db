"""Expansions: stored values that are larger than all that they are made of.

The differences of all pairs of points, the distances of a kernel, the features of additive
attention: XLA stores such a value where several fusions read it, and a plan counts it as
every other. But elementwise work makes it of little, and elementwise work and reductions
alone read it. A plan that makes it again for each of its readers lets XLA fuse it into
them, and then it takes no bytes. So its bytes are no bound on those of all plans.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again

# XLA may evaluate their operands inside of them.
_REDUCTIONS = frozenset(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod "
    "reduce_sum".split()
)


def expansions(program: Program, stored: StoredValues) -> dict[Any, frozenset[Any]]:
    """The stored values that XLA need not store in every plan.

    Arguments:
        program: the step.
        stored: what XLA stores of it as written.

    Returns:
        What each is made of, arguments left out.
    """
    fused = _read_by_fusions(program, stored)
    found: dict[Any, frozenset[Any]] = {}
    made_of: dict[Any, frozenset[Any]] = {}  # Arguments take no bytes of a plan.
    for eqn in program.eqns:
        sources = frozenset[Any]().union(*(made_of.get(v, ()) for v in reads(eqn)))
        size = sum(map(stored.bytes_of, sources))
        for v in writes(eqn):
            if not is_fusible(eqn) or not may_run_again(eqn):
                made_of[v] = frozenset((v,))
            elif v not in stored.stored_bytes:
                made_of[v] = sources
            elif v in fused and size < stored.bytes_of(v):
                found[v] = made_of[v] = sources
            else:
                made_of[v] = frozenset((v,))
    return found


def without_expansions(program: Program, stored: StoredValues) -> StoredValues:
    """The same with what expansions are made of in their place; the same object if there
    are none."""
    found = expansions(program, stored)
    if not found or stored.source != "compiled":  # By rules, XLA's fusions are not known.
        return stored
    values = {*stored.stored_bytes, *frozenset[Any]().union(*found.values())} - set(found)
    kept = {v: stored.bytes_of(v) for v in values}
    return dataclasses.replace(stored, stored_bytes=kept, expansions=frozenset(found))


def _read_by_fusions(program: Program, stored: StoredValues) -> frozenset[Any]:
    """The values all of whose readers can be fused with what makes them."""
    results = {v for v in program.outvars if not isinstance(v, Literal)}
    in_memory = results | stored.stored_bytes.keys()
    unfused = set(results)
    for eqn in reversed(program.eqns):
        if eqn.primitive.name in _REDUCTIONS:
            continue
        ends = [v for v in writes(eqn) if v in unfused]
        if not is_fusible(eqn) or any(v not in in_memory for v in ends):
            unfused.update(reads(eqn))
    made = {v for eqn in program.eqns for v in writes(eqn)}
    return frozenset(made - unfused)
