"""Fence call: the fence on XLA:CPU, an aliased custom call.

XLA:CPU removes `optimization_barrier` before its last common subexpression elimination. A
typed-FFI custom call whose results are all aliased to the operands survives; at run time it
is a function that returns (`xla_ext/ffi/fence_cpu.cc`).

XLA does not compare the layouts of such a call's operand and result, and where the call
itself has layouts it copies. It lays the operand out row-major and the result as its
readers like it (next to LAPACK column-major), so both get a constraint: row-major. No other
order: the operand would not keep to it. (Layouts of vectors cannot differ, but XLA writes
no matrix in the place of a vector, so that what is read behind a fence could not be
overwritten.)

When the program is partitioned over several devices, an unknown custom call would gather
every operand; `custom_partitioning` says that each keeps its sharding. XLA passes shardings
on through such a call later than through elementwise work, and divides what is behind it
otherwise than the step as written meanwhile: so operand and result are also in one group of
equal shardings.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from coop_jax.base import _compat, _compat_sharding
from coop_jax.base._compat import Primitive
from coop_jax.base.custom_calls import register_targets
from coop_jax.emit.fence import fence_p, with_layouts

_TARGET = "coop_fence"

# The call itself, inside of the fence's lowering.
_call_p = Primitive("coop_fence_call")
_call_p.multiple_results = True
_call_p.def_abstract_eval(lambda *avals: list(avals))


def _lower_cpu(ctx, *operands, number, layouts):
    del number, layouts
    register_targets()
    if _compat.num_lowering_devices(ctx) == 1:
        return _lower_call(ctx, *operands)
    fenced = _compat.lower_fun(_call_partitioned, multiple_results=True)(ctx, *operands)
    _compat_sharding.divide_alike(ctx, operands, fenced)
    return fenced


def _lower_call(ctx, *operands):
    row_major = [tuple(range(_compat.physical_aval(a).ndim)) for a in ctx.avals_in]
    fenced = _compat.identity_call(_TARGET, with_layouts(ctx, operands, row_major))
    return with_layouts(ctx, fenced, row_major)


def _call_partitioned(*operands):
    """The fence as a call that XLA's partitioner divides like its operands."""

    def call(*shards):
        return tuple(_call_p.bind(*shards))

    # Keys are opaque to a custom call: their words pass instead.
    words = [jax.random.key_data(a) if _is_key(a) else a for a in operands]
    fenced = custom_partitioning(call)
    fenced.def_partition(
        infer_sharding_from_operands=lambda mesh, args, results: tuple(
            a.sharding for a in args
        ),
        partition=lambda mesh, args, results: (
            mesh,
            call,
            tuple(a.sharding for a in args),
            tuple(a.sharding for a in args),
        ),
        # As XLA has them: where it divides 4 heads over an axis of 8 devices by 4 and
        # repeats them twice, no axis of the mesh names that.
        decode_shardings=False,
        sharding_rule=_identity_rule([w.ndim for w in words]),
    )
    return [
        jax.random.wrap_key_data(w, impl=jax.random.key_impl(a)) if _is_key(a) else w
        for w, a in zip(fenced(*words), operands, strict=True)
    ]


def _is_key(operand: Any) -> bool:
    return jax.dtypes.issubdtype(operand.dtype, jax.dtypes.prng_key)


def _identity_rule(ranks: list[int]) -> str:
    """Every operand keeps its sharding, e.g. `"a0 a1, b0 -> a0 a1, b0"`."""
    terms = ", ".join(
        " ".join(f"d{operand}_{axis}" for axis in range(rank))
        for operand, rank in enumerate(ranks)
    )
    return f"{terms} -> {terms}"


# `custom_partitioning` reads the device assignment.
_compat.require_devices_during_lowering(fence_p)
_compat.register_lowering(_call_p, _lower_call, platform="cpu")
# Each has groups of its own: none is lowered once for several fences.
_compat.register_lowering(fence_p, _lower_cpu, platform="cpu", cacheable=False)
