"""Arguments: which are static, and what makes two calls the same kind of call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax

from coop_jax import _compat


def leaf_key(leaf: Any) -> Any:
    """Type and placement of an argument leaf.

    An array on the default device counts as one without a placement, so that the plan
    made for `ShapeDtypeStruct`s or for the first call serves the later calls, too.
    """
    if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        return jax.typeof(leaf)
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and len(sharding.device_set) == 1:
        [device] = sharding.device_set
        sharding = None if device == _compat.default_device() else sharding
    weak = getattr(leaf, "weak_type", False)
    return leaf.shape, leaf.dtype, bool(weak), sharding


class StaticArguments:
    """Which arguments are static, resolved by name and position as `jax.jit` does."""

    def __init__(self, fn: Callable, jit_options: dict[str, Any]) -> None:
        nums = _as_tuple(jit_options.get("static_argnums"))
        names = _as_tuple(jit_options.get("static_argnames"))
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (ValueError, TypeError):
            parameters = []
        self.parameters = frozenset(p.name for p in parameters)
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._nums = set(nums) | {positional.index(n) for n in names if n in positional}
        self._names = set(names) | {
            positional[i] for i in nums if -len(positional) <= i < len(positional)
        }

    def drop(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The dynamic arguments."""
        nums = self._positions(args)
        return (
            tuple(a for i, a in enumerate(args) if i not in nums),
            {k: v for k, v in kwargs.items() if k not in self._names},
        )

    def map_dynamic(
        self, fn: Callable[[Any], Any], args: tuple, kwargs: dict
    ) -> tuple[tuple, dict]:
        """The arguments with a function applied to each that is not static."""
        nums = self._positions(args)
        return (
            tuple(a if i in nums else fn(a) for i, a in enumerate(args)),
            {k: v if k in self._names else fn(v) for k, v in kwargs.items()},
        )

    def values(self, args: tuple, kwargs: dict) -> Any:
        nums = self._positions(args)
        return (
            tuple((i, a) for i, a in enumerate(args) if i in nums),
            tuple(sorted((k, v) for k, v in kwargs.items() if k in self._names)),
        )

    def _positions(self, args: tuple) -> set[int]:
        return {i % len(args) for i in self._nums if -len(args) <= i < len(args)}


def _as_tuple(value: Any) -> tuple:
    if value is None:
        return ()
    return (value,) if isinstance(value, (int, str)) else tuple(value)
