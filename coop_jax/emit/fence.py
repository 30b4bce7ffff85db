"""Fence: the boundary between two segments, and its lowering on each platform.

A fence hands its operands through unchanged. Nothing after it can be computed before
all of them are there, and the compiler cannot see that its results equal its operands,
so a recomputation that reads them is not merged back into the first computation.

* CPU: XLA removes `optimization_barrier` before its last common subexpression
  elimination. A typed-FFI custom call whose results are all aliased to the operands
  survives; at run time it is a function that returns (`xla_ext/ffi/fence_cpu.cc`).
  XLA does not look whether such a call's operand and result have the same layout, and
  copies what the call itself is told layouts of. It lays the operand out row-major and the
  result as its readers like it (next to LAPACK column-major), so both get a constraint:
  row-major. No other order: the operand would not keep to it. (Of vectors no layouts can
  differ, but XLA writes no matrix in the place of a vector, so that what is read behind a
  fence could not be overwritten.)
  When the program is partitioned over several devices, an unknown custom call would
  gather every operand; `custom_partitioning` says that each keeps its sharding.
* GPU, TPU: `optimization_barrier`, which lives until after their last such pass, and
  whose results are laid out as its operands. On a TPU it is told layouts, too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental.custom_partitioning import custom_partitioning

from coop_jax import _ext
from coop_jax.base import _compat
from coop_jax.base._compat import Primitive

_TARGET = "coop_fence"

# The call itself, inside of the fence's lowering for a CPU.
_call_p = Primitive("coop_fence_call")
_call_p.multiple_results = True
_call_p.def_abstract_eval(lambda *avals: list(avals))

fence_p = Primitive("coop_fence")
fence_p.multiple_results = True


def fence(*operands: Any) -> list[Any]:
    """Bind the fence on arrays or tracers; returns the same values."""
    return fence_p.bind(*operands, number=0, layouts=())


def fence_equation(
    before: Sequence[Any],
    after: Sequence[Any],
    number: int,
    layouts: Sequence[tuple[int, ...] | None] = (),
) -> Any:
    """The fence as an equation between jaxpr variables.

    Arguments:
        number: tells it from other fences.
        layouts: what has to be laid out so (`backends.tpu.layouts`). None for some, or
            empty: XLA:TPU may choose. XLA:GPU always does, and on a CPU all is row-major.
    """
    params = {"number": number, "layouts": tuple(layouts)}
    return _compat.new_jaxpr_eqn(list(before), list(after), fence_p, params, frozenset())


def input_copies_are_free(platform: str) -> bool:
    """Can an input that isn't donated pass a fence without being copied?

    An aliased custom call overwrites its operand, as far as XLA knows, so it copies
    what the caller still owns. A barrier does not.
    """
    return platform != "cpu"


@functools.cache
def register_targets() -> None:
    """Make the custom-call handlers known to XLA; once per process."""
    for platform, handlers in _ext.registrations().items():
        for name, capsule in handlers.items():
            jax.ffi.register_ffi_target(name, capsule, platform=platform)


@fence_p.def_impl
def _fence_impl(*operands, number, layouts):
    del number, layouts
    return list(operands)


@fence_p.def_abstract_eval
def _fence_abstract_eval(*avals, number, layouts):
    del number, layouts
    return list(avals)


def _fence_batch(operands, dims, *, number, layouts):
    del layouts  # Of the elements of the batch.
    return fence_p.bind(*operands, number=number, layouts=()), dims


def _fence_jvp(primals, tangents, *, number, layouts):
    primals_out = fence_p.bind(*primals, number=number, layouts=layouts)
    return primals_out, list(tangents)


_compat.primitive_batchers[fence_p] = _fence_batch
_compat.primitive_jvps[fence_p] = _fence_jvp


def _lower_barrier(ctx, *operands, number, layouts):
    del ctx, number, layouts
    return _compat.hlo.OptimizationBarrierOp(operands).results


def _lower_tpu(ctx, *operands, number, layouts):
    laid_out = _with_layouts(ctx, operands, layouts)
    return _lower_barrier(ctx, *laid_out, number=number, layouts=layouts)


def _lower_cpu(ctx, *operands, number, layouts):
    del number, layouts
    register_targets()
    if _compat.num_lowering_devices(ctx) == 1:
        return _lower_call(ctx, *operands)
    return _compat.lower_fun(_call_partitioned, multiple_results=True)(ctx, *operands)


def _lower_call(ctx, *operands):
    row_major = [tuple(range(_compat.physical_aval(a).ndim)) for a in ctx.avals_in]
    fenced = _compat.identity_call(_TARGET, _with_layouts(ctx, operands, row_major))
    return _with_layouts(ctx, fenced, row_major)


def _with_layouts(ctx, values, layouts):
    avals = map(_compat.physical_aval, ctx.avals_in)
    return [
        _compat.with_layout(ctx, value, aval, order) if order and aval.size else value
        for value, aval, order in itertools.zip_longest(values, avals, layouts)
    ]


def _call_partitioned(*operands):
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
_compat.register_lowering(fence_p, _lower_barrier)
_compat.register_lowering(fence_p, _lower_cpu, platform="cpu")
_compat.register_lowering(fence_p, _lower_tpu, platform="tpu")
