"""Unrolled loops: a `scan` that is no loop for XLA, and what its iterations read and make.

JAX lowers a `scan` whose `unroll` covers all of its iterations to its body, repeated, and
XLA takes a loop of a single trip apart. So such a `scan` is part of the straight line,
where its values are planned one by one. What the iterations stack for the `scan` of the
gradient is read from there entry by entry: as calls, the two pass the entries themselves,
and a stack that nothing else reads is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from coop_jax.base import _compat


def is_unrolled(eqn: Any) -> bool:
    """Whether the equation is a `scan` over arrays that XLA gets without a loop."""
    if eqn.primitive.name != "scan":
        return False
    length, unroll = eqn.params["length"], eqn.params["unroll"]
    if not length or (unroll and length // unroll > 1):  # 0 unrolls all, too.
        return False
    return all(_compat.is_array(v.aval) for v in (*eqn.invars, *eqn.outvars))


def order_of_iterations(eqn: Any) -> Sequence[int]:
    """The numbers of the entries, in the order in which a `scan` reads them."""
    numbers = range(eqn.params["length"])
    return numbers[::-1] if eqn.params["reverse"] else numbers


def entries_of(stack: Any) -> list[Any]:
    """The entries of a stack of arrays."""
    return [lax.index_in_dim(stack, number, keepdims=False) for number in range(len(stack))]


def stack_of(*entries: Any) -> list[Any]:
    """The stack of arrays, alone in a list."""
    return [lax.concatenate([lax.expand_dims(entry, (0,)) for entry in entries], 0)]
