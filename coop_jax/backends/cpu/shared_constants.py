"""Shared constants: arrays of one constant that XLA:CPU makes once, and keeps.

Kernels of products and reductions take in the elementwise equations around them, and read
what a constant is broadcast to as an array. The readers in all segments share one, which
lives from the first to the last: a scale of attention scores is as large as they are. Then
they may also be split from the kernel. A constant that has passed a fence is not equal to
another, and its array stays in one segment.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program

# Primitives that have the same bits where XLA does not see the value of a scalar.
_BLIND = frozenset("max min add sub".split())
# Below, arrays of a constant take less memory than is worth an operand of a fence.
_NOTICEABLE_BYTES = 2**14


def shared_constants(program: Program) -> frozenset[int]:
    """Indices of the equations whose scalar constants have to pass a fence."""
    return frozenset(
        index
        for index, eqn in enumerate(program.eqns)
        if sum(aval_bytes(v.aval) for v in eqn.outvars) >= _NOTICEABLE_BYTES
        and any(map(_is_scalar, eqn.invars))
        and _is_blind(eqn)
    )


def _is_scalar(atom: Any) -> bool:
    """Whether an atom is a scalar literal of float16, float32 or float64."""
    if not isinstance(atom, Literal) or np.shape(atom.val):
        return False
    return np.issubdtype(np.asarray(atom.val).dtype, np.floating)


def _is_blind(eqn: Any) -> bool:
    if eqn.primitive.name in _BLIND:
        return True
    # XLA multiplies by the reciprocal of a divisor that it sees, and joins factors.
    factors = [float(atom.val) for atom in eqn.invars if _is_scalar(atom)]
    is_divisor = eqn.primitive.name == "div" and _is_scalar(eqn.invars[1])
    return (is_divisor or eqn.primitive.name == "mul") and all(map(_is_exact, factors))


def _is_exact(factor: float) -> bool:
    """Whether factors and divisors are powers of two."""
    return factor != 0 and math.isfinite(factor) and abs(math.frexp(factor)[0]) == 0.5
