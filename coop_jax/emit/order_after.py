"""Order after: the identity of a value, ordered after other values are computed.

    later = after(value, *others)

XLA:GPU removes barriers from the program before it orders it, and XLA:CPU before it looks
for copies to leave out, so there they keep nothing in order. This primitive does: a custom
call without a kernel, whose result aliases the value. XLA:TPU gets a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from coop_jax.base import _compat
from coop_jax.base._compat import Primitive
from coop_jax.base.custom_calls import register_targets

_TARGET = "coop_after"

after_p = Primitive("coop_after")


def after_equation(value: Any, later: Any, others: Sequence[Any]) -> Any:
    """The equation `later = after(value, *others)` between jaxpr variables."""
    operands = [value, *dict.fromkeys(others)]
    return _compat.new_jaxpr_eqn(operands, [later], after_p, {}, frozenset())


@after_p.def_impl
def _after_impl(value, *others):
    del others
    return value


@after_p.def_abstract_eval
def _after_abstract_eval(value, *others):
    del others
    return value


def _after_batch(operands, dims):
    return after_p.bind(*operands), dims[0]


def _after_jvp(primals, tangents):
    return after_p.bind(*primals), tangents[0]


_compat.primitive_batchers[after_p] = _after_batch
_compat.primitive_jvps[after_p] = _after_jvp


def _lower_barrier(ctx, *operands):
    del ctx
    return _compat.hlo.OptimizationBarrierOp(operands).results[:1]


def _lower_call(ctx, *operands):
    register_targets()
    if _compat.num_lowering_devices(ctx) > 1:  # a custom call would gather its operands
        return _lower_barrier(ctx, *operands)
    ctx = ctx.replace(
        avals_in=[_compat.physical_aval(a) for a in ctx.avals_in],
        avals_out=[_compat.physical_aval(a) for a in ctx.avals_out],
    )
    lowering = jax.ffi.ffi_lowering(_TARGET, operand_output_aliases={0: 0})
    return lowering(ctx, *operands)


_compat.require_devices_during_lowering(after_p)
_compat.register_lowering(after_p, _lower_barrier)
for _platform in ("cpu", "cuda"):
    _compat.register_lowering(after_p, _lower_call, platform=_platform)
