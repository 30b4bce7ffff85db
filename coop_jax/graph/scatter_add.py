"""Scatter-add: sums that XLA computes by scattering into an operand.

The gradient of a lookup (an embedding, the picked entries of a loss) is a scatter into
zeros, and is added to another gradient. XLA scatters into that other gradient in place:
neither the zeros nor the scatter's own result are ever stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.trace.program import Program, reads

_SCATTERS = frozenset(("scatter-add", "scatter_add"))
_SUMS = frozenset(("add", "add_any"))


def accumulations(program: Program) -> dict[Any, tuple[Any, Any]]:
    """By the result of a scatter: the sum that is stored instead, and its other operand."""
    made_by = {v: eqn for eqn in program.eqns for v in eqn.outvars}
    readers: dict[Any, list[Any]] = {}
    for eqn in program.eqns:
        for v in set(reads(eqn)):
            readers.setdefault(v, []).append(eqn)
    results = {v for v in program.outvars if not isinstance(v, Literal)}
    found: dict[Any, tuple[Any, Any]] = {}
    for eqn in program.eqns:
        if eqn.primitive.name not in _SCATTERS or not _is_zeros(eqn.invars[0], made_by):
            continue
        [scattered] = eqn.outvars
        consumers = readers.get(scattered, [])
        if scattered in results or len(consumers) != 1:
            continue
        [consumer] = consumers
        others = [v for v in consumer.invars if v is not scattered]
        if (
            consumer.primitive.name in _SUMS
            and len(others) == 1
            and not isinstance(others[0], Literal)
            and others[0].aval.shape == scattered.aval.shape
        ):
            found[scattered] = consumer.outvars[0], others[0]
    return found


def _is_zeros(value: Any, made_by: dict[Any, Any]) -> bool:
    """Whether a value is zeros of any shape, made by a broadcast."""
    while not isinstance(value, Literal):
        eqn = made_by.get(value)
        if eqn is None or eqn.primitive.name not in (
            "broadcast_in_dim",
            "convert_element_type",
        ):
            return False
        value = eqn.invars[0]
    return not np.any(np.asarray(value.val))
