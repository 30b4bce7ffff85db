"""Shared zeros: zeros that XLA:GPU merges with those of another equation, and keeps.

XLA:GPU takes the gradient of a max-pooling apart and scatters into an array of zeros, a
real one. A `relu` over values of that shape compares with zeros as well, which otherwise
exist inside a fusion only. XLA sees that both are equal, makes them once, at the first
`relu` of the step, and keeps them until the last gradient. A zero that has passed a fence
is not equal to another.
"""

from __future__ import annotations

from typing import Any

from coop_jax.graph.attribution import fills_an_array
from coop_jax.trace.program import Program, is_zero

# Primitives that make an array of a scalar, and for which it does not matter that XLA no
# longer sees the scalar's value.
_SPREADS = frozenset("broadcast_in_dim max min select_n eq ne gt ge lt le".split())


def shared_zeros(program: Program) -> frozenset[int]:
    """Indices of the equations whose zeros have to pass a fence."""
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
