"""Shared zeros: zeros that XLA:GPU merges with those of another equation, and keeps.

XLA:GPU takes the gradient of a max-pooling apart and scatters into an array of zeros, a
real one. A `relu` over values of that shape compares with zeros as well, which otherwise
exist inside a fusion only. XLA sees that both are equal, makes them once, at the first
`relu` of the step, and keeps them until the last gradient. A zero that has passed a fence
is not equal to another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.trace.program import Program

_GPU = frozenset(("gpu", "cuda", "rocm"))
# What makes an array of a scalar, and to what it makes no difference that XLA no longer
# sees the scalar's value.
_SPREADS = frozenset("broadcast_in_dim max min select_n eq ne gt ge lt le".split())


def shared_zeros(program: Program, platform: str) -> frozenset[int]:
    """Indices of the equations whose zeros have to pass a fence, on a platform."""
    if platform not in _GPU:
        return frozenset()
    filled = {_shape(eqn) for eqn in program.eqns if fills_an_array(eqn)}
    return frozenset(
        index
        for index, eqn in enumerate(program.eqns)
        if eqn.primitive.name in _SPREADS
        and _shape(eqn) in filled
        and any(map(is_zero, eqn.invars))
    )


def _shape(eqn: Any) -> tuple[int, ...]:
    return eqn.outvars[0].aval.shape


def fills_an_array(eqn: Any) -> bool:
    """Does XLA:GPU scatter its result into an array of zeros?"""
    return eqn.primitive.name == "select_and_scatter_add"


def is_zero(atom: Any) -> bool:
    """Is it a scalar zero that stands in the program itself?"""
    return isinstance(atom, Literal) and not np.shape(atom.val) and not np.any(atom.val)
