"""Groups of equal shardings, as `jax.experimental.shard_alike` has them, in lowerings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import config as _config
from jax._src.lib.mlir.dialects import sdy as _sdy


class _NumberOfGroups:
    """The number of groups of equal shardings in a module so far, from where those of
    `jax.experimental.shard_alike` do not get."""

    def __init__(self) -> None:
        self.number = 2**40


def divide_alike(ctx: Any, values: Sequence[Any], others: Sequence[Any]) -> None:
    """Let XLA's partitioner divide each value of a lowering like the other one, from
    before it divides anything that is computed of them."""
    if not _config.use_shardy_partitioner.value:
        return
    kept = ctx.module_context.keepalives  # One list in all contexts of a module.
    count = next((k for k in kept if isinstance(k, _NumberOfGroups)), None)
    if count is None:
        kept.append(count := _NumberOfGroups())
    for pair in zip(values, others, strict=True):
        for value in pair:
            _sdy.sharding_group(value, count.number)
        count.number += 1
