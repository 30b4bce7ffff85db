"""CSE: common subexpression and dead code elimination on a list of equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from coop_jax.base._compat import DropVar, Literal
from coop_jax.trace.program import reads
from coop_jax.trace.purity import may_merge, may_vanish
from coop_jax.trace.shard_types import mesh_of_shards


def merge_equal(eqns: list[Any], outvars: list[Any]) -> tuple[list[Any], list[Any]]:
    """Common subexpression elimination: the remaining equations and results.

    Only equations that `purity.may_merge` allows are merged.
    """
    renamed: dict[Any, Any] = {}
    seen: dict[Any, Any] = {}
    kept = []

    def read(atom):
        return atom if isinstance(atom, Literal) else renamed.get(atom, atom)

    for eqn in eqns:
        eqn = eqn.replace(invars=[read(v) for v in eqn.invars])
        key = equation_key(eqn)
        first = None if key is None else seen.get(key)
        if first is not None:
            for var, same in zip(eqn.outvars, first.outvars, strict=True):
                # A result that the first equation dropped has no variable to refer to.
                if isinstance(same, DropVar) and not isinstance(var, DropVar):
                    first = None
        if first is not None:
            renamed.update(zip(eqn.outvars, first.outvars, strict=True))
            continue
        if key is not None:
            seen[key] = eqn
        kept.append(eqn)
    return kept, [read(v) for v in outvars]


def equation_key(eqn: Any, value_of: Callable[[Any], Any] | None = None) -> Any | None:
    """A key, equal for equations that may be merged; None for one that may not be.

    Arguments:
        eqn: the equation.
        value_of: gives the object that represents a variable in the key; by default the
            variable itself.
    """
    if not may_merge(eqn):
        return None
    operands = tuple(
        literal_key(v) if isinstance(v, Literal) else value_of(v) if value_of else v
        for v in eqn.invars
    )
    # Without operands, equations of whole arrays and of shards may differ in nothing else.
    meshes = tuple(mesh_of_shards(v.aval) for v in eqn.outvars)
    params = tuple(sorted(eqn.params.items()))
    key = (eqn.primitive, operands, params, eqn.ctx, meshes)
    try:
        hash(key)
    except TypeError:  # an unhashable parameter: never merged
        return None
    return key


def literal_key(literal: Any) -> Any:
    """A key, equal for literals of the same type and value."""
    # By bytes: 0.0 == -0.0 and nan != nan would both merge wrongly.
    return str(literal.aval), np.asarray(literal.val).tobytes()


def without_dead(eqns: list[Any], outvars: list[Any]) -> list[Any]:
    """The equations without the dead ones; an equation that may not vanish stays."""
    live = {v for v in outvars if not isinstance(v, Literal)}
    kept = []
    for eqn in reversed(eqns):
        if any(v in live for v in eqn.outvars) or not may_vanish(eqn):
            kept.append(eqn)
            live.update(reads(eqn))
    return kept[::-1]
