"""Fence: the boundary between two segments, as a primitive.

A fence returns its operands unchanged. Nothing that reads its results can be computed
before all operands are, and the compiler cannot see that results equal operands, so a
recomputation that reads them is not merged back into the first computation.

It is an `optimization_barrier`, which on GPUs and TPUs lives until after the last common
subexpression elimination, and whose results have its operands' layouts. A backend that
needs another lowering has it: `backends.cpu.fence_call`, `backends.tpu.fence_layouts`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import Primitive

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
        before, after: operands and results, one to one.
        number: distinguishes it from other fences.
        layouts: of the operands: their dimensions, the outermost in memory first
            (`backends.tpu.layouts`). None for some, or empty: XLA:TPU may choose. XLA:GPU
            always does, and on a CPU all is row-major.
    """
    params = {"number": number, "layouts": tuple(layouts)}
    return _compat.new_jaxpr_eqn(list(before), list(after), fence_p, params, frozenset())


@fence_p.def_impl
def _fence_impl(*operands, number, layouts):
    del number, layouts
    return list(operands)


@fence_p.def_abstract_eval
def _fence_abstract_eval(*avals, number, layouts):
    del number, layouts
    return list(avals)


def _fence_batch(operands, dims, *, number, layouts):
    del layouts  # They are those of the elements of the batch.
    return fence_p.bind(*operands, number=number, layouts=()), dims


def _fence_jvp(primals, tangents, *, number, layouts):
    primals_out = fence_p.bind(*primals, number=number, layouts=layouts)
    return primals_out, list(tangents)


_compat.primitive_batchers[fence_p] = _fence_batch
_compat.primitive_jvps[fence_p] = _fence_jvp


def lower_barrier(ctx, *operands, number, layouts):
    """Results of the default lowering, for backends that have none of their own."""
    del ctx, number, layouts
    return _compat.hlo.OptimizationBarrierOp(operands).results


def with_layouts(ctx, values, layouts):
    """The values of a lowering, constrained to layouts; None or missing: XLA chooses."""
    avals = map(_compat.physical_aval, ctx.avals_in)
    return [
        _compat.with_layout(ctx, value, aval, order) if order and aval.size else value
        for value, aval, order in itertools.zip_longest(values, avals, layouts)
    ]


_compat.register_lowering(fence_p, lower_barrier)
