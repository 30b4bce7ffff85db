"""Fence layouts: a fence on XLA:TPU keeps the layouts that `backends.tpu.layouts` finds."""

from __future__ import annotations

from coop_jax.base import _compat
from coop_jax.emit.fence import fence_p, lower_barrier, with_layouts


def _lower_tpu(ctx, *operands, number, layouts):
    laid_out = with_layouts(ctx, operands, layouts)
    return lower_barrier(ctx, *laid_out, number=number, layouts=layouts)


_compat.register_lowering(fence_p, _lower_tpu, platform="tpu")
