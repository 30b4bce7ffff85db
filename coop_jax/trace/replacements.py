"""Replacements: primitives of coop_jax that each replace one of JAX's.

A backend may evaluate an equation in its own way (`backends.cpu.pool_gradient`). Costs,
names in reports and comparisons are those of the equation as the user wrote it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.base._compat import Primitive


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Properties of a primitive that replaces another one.

    Attributes:
        replaces: the primitive of JAX, which takes the same parameters.
        scratch_bytes: gives the bytes that an equation needs beside operands and results.
    """

    replaces: Primitive
    scratch_bytes: Callable[[Any], int]


_REPLACEMENTS: dict[Primitive, Replacement] = {}


def register(primitive: Primitive, replacement: Replacement) -> None:
    """Register a replacement; once, by the module that defines the primitive."""
    _REPLACEMENTS[primitive] = replacement


def replacement_of(eqn: Any) -> Replacement | None:
    """The replacement whose primitive an equation has, or None."""
    return _REPLACEMENTS.get(eqn.primitive)


def original(eqn: Any) -> Any:
    """The equation that this one replaces; an equation that replaces none, unchanged."""
    replacement = replacement_of(eqn)
    return eqn if replacement is None else eqn.replace(primitive=replacement.replaces)
