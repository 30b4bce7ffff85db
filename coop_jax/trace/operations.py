"""Operations: what work other than products takes for an element, of a jaxpr or of an HLO
module.

Those of vectors, each about as long as an addition. `examples/cpu_rates.py` has the times
that they stand for on a processor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coop_jax.base._compat import Literal

TRANSCENDENTAL_OPERATIONS = 10
# A polynomial of a reduced argument, or several of them.
LONG_OPERATIONS = 50
RANDOM_BITS_OPERATIONS = 100  # threefry2x32: 20 rounds of about 5 operations a word
# To compare two elements of a sorting network, with their indices, and to exchange them:
# `examples/compare/sort_rates.py`, on an H200 24 to 29 in rows of 256 to 4,096, on a CPU 21
# to 29 in rows of 256 to a million.
SORT_OPERATIONS = 25
# For a point of a Fourier transform and each halving of its length.
FOURIER_OPERATIONS = 5
# XLA takes cumulative sums for reductions of windows of as many elements, of which half are
# padding in the mean, and of what is left of them (`ReduceWindowRewriter`).
_CUMULATIVE_WINDOW = 16
# Of `argmax`: two indices and two values are compared, for order and for NaN.
_ARGUMENT_OPERATIONS = 9

TRANSCENDENTAL = frozenset(
    "acosh asinh atanh cosh erf erfc exp exp2 expm1 log log1p logistic polynomial rsqrt "
    "sinh sqrt tanh".split()
)
LONG = frozenset("acos asin atan atan2 cbrt cos digamma erf_inv lgamma pow sin tan".split())
# Series, which XLA evaluates in loops.
_SERIES = frozenset(
    "bessel_i0e bessel_i1e igamma igamma_grad_a igammac polygamma random_gamma_grad "
    "regularized_incomplete_beta zeta".split()
)
_CUMULATIVE = {
    "cumlogsumexp": 2 * TRANSCENDENTAL_OPERATIONS,
    "cummax": 1,
    "cummin": 1,
    "cumprod": 1,
    "cumsum": 1,
}
_ARGUMENTS = frozenset("argmax argmin".split())
# XLA, or LLVM, has a product, a root or nothing for these powers.
_SHORT_POWERS = frozenset((-1.0, 0.0, 0.5, 1.0, 2.0, 3.0))


def sort_operations(elements: int, length: int) -> int:
    """Operations to sort an array in rows of a length, as by a bitonic network."""
    merges = max(length - 1, 0).bit_length()
    return SORT_OPERATIONS * elements * merges * (merges + 1) // 2


def selection_operations(elements: int, length: int) -> int:
    """Operations to find the few largest of every row of a length."""
    return SORT_OPERATIONS * elements * max(length - 1, 0).bit_length()


def fourier_operations(elements: int, lengths: Sequence[int], *, is_real: bool) -> int:
    """Operations of Fourier transforms.

    Arguments:
        elements: of the side that has most of them, in all transforms.
        lengths: of one transform, by dimension.
        is_real: whether one side is real: then half of the points are known.
    """
    halvings = max(math.prod(lengths) - 1, 0).bit_length()
    return FOURIER_OPERATIONS * elements * halvings // (2 if is_real else 1)


def is_long(eqn: Any) -> bool:
    """Whether an equation takes `LONG_OPERATIONS` for each element of its result."""
    name = eqn.primitive.name
    if name == "rem":
        return eqn.outvars[0].aval.dtype.name.startswith(("f", "bf"))
    if name == "pow" and isinstance(eqn.invars[1], Literal):
        exponent = np.asarray(eqn.invars[1].val, np.complex128)
        return exponent.ndim > 0 or exponent.item() not in _SHORT_POWERS
    return name in LONG or name in _SERIES


def scanned_operations(eqn: Any) -> int:
    """Operations of a reduction that no processor has vectors for: cumulative, or of
    several values at once, as for the index of an extremum; 0 of anything else."""
    name = eqn.primitive.name
    if name in _ARGUMENTS or (name == "reduce" and len(eqn.outvars) > 1):
        return _ARGUMENT_OPERATIONS * eqn.invars[0].aval.size
    if name not in _CUMULATIVE:
        return 0
    operand = eqn.invars[0].aval
    window = min(operand.shape[eqn.params["axis"]], _CUMULATIVE_WINDOW)
    return _CUMULATIVE[name] * (window + 1) * operand.size // 2
