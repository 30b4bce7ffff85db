"""Call arguments: the kind of a call, which decides its plan."""

from __future__ import annotations

from typing import Any

import jax

from coop_jax.base import _compat, _compat_jit


def kind_of_arguments(jitted: Any, args: tuple, kwargs: dict) -> Any:
    """A hashable key, equal for calls that one plan serves, as one executable of `jax.jit`
    would.

    It has the parts of the key of `jax.jit`: trees and static arguments, the abstract
    values of the other leaves, their placement, and the configuration.

    Raises:
        ValueError, TypeError: `jax.jit`'s, if an argument is not valid.
    """
    signature, leaves = _compat_jit.parse_arguments(jitted, args, kwargs)
    try:
        avals = tuple(map(_compat_jit.abstract_value, leaves))
    except (TypeError, OverflowError):
        jitted.trace(*args, **kwargs)  # raises the error that names the argument
        raise
    return (
        signature,
        avals,
        tuple(map(_placement, leaves)),
        _compat.trace_context(),
    )


def _placement(leaf: Any) -> Any:
    """The sharding of a leaf, None if `jax.jit` would place it the same way.

    So the plan that was made for `ShapeDtypeStruct`s or for the first call, with arrays on
    the default device, serves the later calls, too.
    """
    if _compat.is_traced([leaf]):
        return None  # The known part of its sharding is in its type.
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.Sharding):
        return None
    if isinstance(leaf, jax.Array) and not _compat_jit.is_committed(leaf):
        return None
    if len(sharding.device_set) > 1:
        return _Layout(sharding, leaf.ndim)
    [device] = sharding.device_set
    if device != _compat.default_device():
        return sharding
    is_default = sharding.memory_kind in (None, device.default_memory().kind)
    return None if is_default else sharding


class _Layout:
    """The layout of an array over devices: equal where `jax.jit` takes two shardings for
    the same, as `P("x")` and `P("x", None)`, which a step may be given and return."""

    def __init__(self, sharding: jax.sharding.Sharding, ndim: int) -> None:
        self._sharding, self._ndim = sharding, ndim
        self._hash = hash((sharding.num_devices, ndim))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Layout) or self._ndim != other._ndim:
            return False
        one, another = self._sharding, other._sharding
        return one == another or one.is_equivalent_to(another, self._ndim)
