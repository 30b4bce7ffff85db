"""Calls of `coop_exchange` from JAX, and what each should give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax import _ext

TARGET = "coop_exchange_under_test"


@dataclasses.dataclass(frozen=True)
class Exchanger:
    """`coop_exchange` on one device."""

    device: Any
    platform: str

    def __post_init__(self):
        handler = _ext.registrations()[self.platform]["coop_exchange"]
        jax.ffi.register_ffi_target(TARGET, handler, platform=self.platform)

    def put(self, *arrays):
        return [jax.device_put(a, self.device) for a in arrays]

    def run(self, arena, passed=(), stores=(), **kwargs):
        """One exchange by itself, on NumPy arrays, to the end."""
        leaves, tree = jax.tree.flatten((arena, list(passed), list(stores)))
        results = jax.jit(
            lambda leaves: exchange(*jax.tree.unflatten(tree, leaves), **kwargs)
        )(self.put(*leaves))
        return jax.tree.map(np.asarray, jax.block_until_ready(results))


def exchange(
    arena: Any,
    passed: Sequence[Any] = (),
    stores: Sequence[Any] = (),
    *,
    store_at: Sequence[int] = (),
    load_at: Sequence[int] = (),
    loads: Sequence[tuple[tuple[int, ...], Any]] = (),
    aliased: bool = True,
    num_pass_through: int | None = None,
    shapes: Sequence[jax.ShapeDtypeStruct] | None = None,
) -> tuple[Any, list[Any], list[Any]]:
    """The arena, the values passed through and those loaded."""
    if shapes is None:
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (arena, *passed)]
    shapes = [*shapes, *(jax.ShapeDtypeStruct(*load) for load in loads)]
    aliases = {i: i for i in range(1 + len(passed))} if aliased else None
    p = len(passed) if num_pass_through is None else num_pass_through
    results = jax.ffi.ffi_call(TARGET, shapes, input_output_aliases=aliases)(
        arena,
        *passed,
        *stores,
        num_pass_through=np.int64(p),
        store_offsets=np.asarray(store_at, np.int64),
        load_offsets=np.asarray(load_at, np.int64),
    )
    arena, *rest = results
    return arena, rest[: len(passed)], rest[len(passed) :]


def bytes_of(array: Any) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def expected(arena, stores, store_at, load_at, loads):
    """The arena's and the loaded values' bytes: all loads, then all stores."""
    loaded = []
    for offset, (shape, dtype) in zip(load_at, loads, strict=True):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        loaded.append(arena[offset : offset + size].copy())
    arena = arena.copy()
    for offset, value in zip(store_at, stores, strict=True):
        data = bytes_of(value)
        arena[offset : offset + data.size] = data
    return arena, loaded
