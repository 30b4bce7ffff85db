"""High-level primitives: calls that JAX keeps whole until it lowers them.

From JAX 0.12 on, `jnp.searchsorted` and others are one equation, with rules of their own
for gradients and batches, and no jaxpr. Where it is lowered, JAX traces the function that
the primitive expands to; so it is a call of that.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from coop_jax.base import _compat, _compat_typed


def expanded(eqn: Any) -> Any | None:
    """The closed jaxpr of what an equation is lowered to; None of any other equation, and
    of one with effects or references."""
    if eqn.primitive.name != "call_hi_primitive" or eqn.effects:
        return None
    if not _compat.is_of_programs(eqn.primitive):
        return None
    avals = tuple(v.aval for v in (*eqn.invars, *eqn.outvars))
    if not all(map(_compat.is_array, avals)):
        return None
    return _traced(eqn.primitive, eqn.params["_prim"], avals[: len(eqn.invars)])


@functools.lru_cache(maxsize=1024)
def _traced(primitive: Any, what: Any, avals: Sequence[Any]) -> Any:
    with _compat_typed.on_mesh_of(avals):
        return jax.make_jaxpr(lambda *args: primitive.to_lojax(*args, _prim=what))(
            *map(_compat_typed.struct_of, avals)
        )
