"""Random bits: kept as one value, not as the two that XLA:CPU makes it of.

On a CPU the cipher is a loop with two results. The bits are their exclusive or, which XLA
merges into whatever reads the bits, and so keeps both from the forward to the backward
pass. Of bits that have passed a fence it keeps one value.
"""

from __future__ import annotations

from coop_jax.trace.program import Program


def kept_in_halves(program: Program) -> frozenset[int]:
    """Indices of the equations whose result has to pass a fence."""
    return frozenset(
        index
        for index, eqn in enumerate(program.eqns)
        if eqn.primitive.name == "random_bits"
    )
