"""Pool gradient: `select_and_scatter_add` with one array of indices, made when needed.

XLA:CPU takes the gradient of a max-pooling apart: an array of indices per dimension, each
as large as what is pooled, says where the maximum of a window is. They need no argument,
so they are made at the beginning of the step, and no fence keeps them from it. Here one
number per element does, and it waits for the elements. The result is the same: the first
element that the selection prefers, and sums in the order of the windows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coop_jax.base import _compat
from coop_jax.base._compat import Primitive
from coop_jax.emit.order_after import after_p
from coop_jax.trace.program import Program
from coop_jax.trace.replacements import Replacement, register

_NAME = "select_and_scatter_add"
# XLA:CPU computes with narrower ones in a wider type: the sums would differ.
_TYPES = frozenset((np.dtype("float32"), np.dtype("float64")))

pool_gradient_p = Primitive("coop_pool_gradient")


def is_replaceable(eqn: Any) -> bool:
    """Is it the gradient of a pooling whose indices XLA:CPU makes early?"""
    if eqn.primitive.name != _NAME:
        return False
    aval = eqn.outvars[0].aval
    is_known = eqn.params["select_prim"].name in ("ge", "le")
    return is_known and aval.dtype in _TYPES and aval.size < 2**30


def scratch_bytes(eqn: Any) -> int:
    """Bytes that one of this primitive needs besides operands and result: indices and, if
    it is padded, the operand; of the windows, the values selected and their places."""
    source, operand = (v.aval for v in eqn.invars)
    padding = eqn.params["padding"]
    size = math.prod(d + sum(p) for d, p in zip(operand.shape, padding, strict=True))
    itemsize = operand.dtype.itemsize
    padded = 2 * size * itemsize if any(map(any, padding)) else 0
    return 4 * size + padded + (4 + itemsize) * source.size


def with_pool_gradients(program: Program) -> Program:
    """A program with this primitive wherever XLA:CPU gains by it."""
    eqns = tuple(
        eqn.replace(primitive=pool_gradient_p) if is_replaceable(eqn) else eqn
        for eqn in program.eqns
    )
    return dataclasses.replace(program, eqns=eqns)


def _gradient(source, operand, *, select_prim, window_dimensions, window_strides, padding):
    """The gradient of a max-pooling, with one array of indices."""
    worst = operand.dtype.type(-np.inf if select_prim.name == "ge" else np.inf)
    padded = lax.pad(operand, worst, [(low, high, 0) for low, high in padding])
    shape, size = padded.shape, padded.size
    start = lax.iota(jnp.int32, 1)
    # Until the values are there, there are no indices; until the gradients are, no zeros.
    first = after_p.bind(start, operand)
    index = lax.iota(jnp.int32, size).reshape(shape) + first.reshape((1,) * len(shape))

    def select(one, other):
        (value, at), (other_value, other_at) = one, other
        keeps = (at != -1) & select_prim.bind(value, other_value)
        return (
            lax.select(keeps, value, other_value),
            lax.select(keeps, at, other_at),
        )

    _, where = lax.reduce_window(
        (padded, index),
        (worst, np.int32(-1)),
        select,
        window_dimensions,
        window_strides,
        "VALID",
    )
    zero = after_p.bind(start, source).astype(operand.dtype)
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    added = lax.scatter_add(
        jnp.broadcast_to(zero, (size,)),
        where.reshape(-1, 1),
        source.reshape(-1),
        numbers,
        mode=lax.GatherScatterMode.FILL_OR_DROP,
    )
    low = [before for before, _ in padding]
    high = [before + d for before, d in zip(low, operand.shape, strict=True)]
    return lax.slice(added.reshape(shape), low, high)


def _bind_original(*operands, **params):
    return lax.select_and_scatter_add_p.bind(*operands, **params)


def _lower_cpu(ctx, *operands, **params):
    whole = _compat.num_lowering_devices(ctx) == 1  # Flat indices would gather shards.
    function = _gradient if whole else _bind_original
    return _compat.lower_fun(function, multiple_results=False)(ctx, *operands, **params)


def _batch(operands, dims, **params):
    bind = functools.partial(_bind_original, **params)
    return jax.vmap(bind, dims)(*operands), 0


def _jvp(primals, tangents, **params):
    """Linear in the source; what is selected does not change."""
    source, operand = primals
    tangent = _compat.instantiate_zeros(tangents[0])
    made = (_bind_original(value, operand, **params) for value in (source, tangent))
    return tuple(made)


pool_gradient_p.def_impl(_bind_original)
pool_gradient_p.def_abstract_eval(
    lambda source, operand, **params: operand.update(weak_type=False)
)
# Under an outer transformation it is XLA's own again.
_compat.primitive_batchers[pool_gradient_p] = _batch
_compat.primitive_jvps[pool_gradient_p] = _jvp
_compat.require_devices_during_lowering(pool_gradient_p)
_compat.register_lowering(
    pool_gradient_p, _compat.lower_fun(_bind_original, multiple_results=False)
)
_compat.register_lowering(pool_gradient_p, _lower_cpu, platform="cpu")
register(pool_gradient_p, Replacement(lax.select_and_scatter_add_p, scratch_bytes))
