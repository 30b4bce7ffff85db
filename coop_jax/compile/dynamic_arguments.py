"""Dynamic arguments: those of a call that are not static, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from coop_jax.base import _compat, _compat_jit


def map_dynamic(
    jitted: Any, fn: Callable[[Any], Any], args: tuple, kwargs: dict
) -> tuple[tuple, dict]:
    """The arguments with a function applied to each that is not static."""
    nums, static_names = _static(jitted, args)
    return (
        tuple(a if i in nums else fn(a) for i, a in enumerate(args)),
        {k: v if k in static_names else fn(v) for k, v in kwargs.items()},
    )


def without_static(jitted: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments that are not static."""
    nums, static_names = _static(jitted, args)
    return (
        tuple(a for i, a in enumerate(args) if i not in nums),
        {k: v for k, v in kwargs.items() if k not in static_names},
    )


def without_values(jitted: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with `jax.ShapeDtypeStruct`s in the place of arrays: `jax.jit` lowers
    both to one program, and these hold no memory."""

    def described(tree: Any) -> Any:
        return jax.tree.map(_struct_of, tree)

    return map_dynamic(jitted, described, args, kwargs)


def _struct_of(leaf: Any) -> Any:
    if not isinstance(leaf, (jax.Array, np.ndarray)) or _compat.is_traced([leaf]):
        return leaf
    aval = _compat_jit.abstract_value(leaf)
    # What is not bound to a device goes where `jax.jit` places it.
    is_bound = isinstance(leaf, jax.Array) and _compat_jit.is_committed(leaf)
    sharding = getattr(leaf, "sharding", None) if is_bound else None
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=sharding, weak_type=aval.weak_type
    )


def _static(jitted: Any, args: tuple) -> tuple[set[int], tuple[str, ...]]:
    """Positions and names of the static arguments of a call."""
    nums, names = _compat_jit.static_arguments(jitted)
    return {i % len(args) for i in nums if -len(args) <= i < len(args)}, names
