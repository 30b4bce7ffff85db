"""Factorizations: operations of linear algebra, of a jaxpr or of a library's routine.

Each takes a number of operations in proportion to the two sides of its matrix and the
smaller of them, as Golub and Van Loan, Matrix Computations, give them for square matrices,
with vectors; those with iterations as many as they take as a rule. Matrix units are of
little use for them.
"""

from __future__ import annotations

import math
import re

# By JAX's primitive. A QR factorization makes its reflectors, and Q of them.
_PER_CUBE = {
    "cholesky": 1 / 3,
    "eig": 25,
    "eigh": 9,
    "geqp3": 4 / 3,
    "geqrf": 4 / 3,
    "hessenberg": 10 / 3,
    "householder_product": 4 / 3,
    "lu": 2 / 3,
    "ormqr": 2,
    "qr": 8 / 3,
    "schur": 25,
    "svd": 20,
    "tridiagonal": 4 / 3,
}
TRIANGULAR_SOLVE = "triangular_solve"
FACTORIZATIONS = frozenset([*_PER_CUBE, TRIANGULAR_SOLVE])

# By a part of the names that LAPACK, cuSOLVER and cuBLAS have for it.
_ROUTINES = {
    "potrf": "cholesky",
    "cholesky": "cholesky",
    "gees": "schur",
    "geev": "eig",
    "gehrd": "hessenberg",
    "geqp3": "geqp3",
    "geqrf": "geqrf",
    "gesdd": "svd",
    "gesvd": "svd",
    "getrf": "lu",
    "heevd": "eigh",
    "hetrd": "tridiagonal",
    "orgqr": "householder_product",
    "syev": "eigh",
    "sytrd": "tridiagonal",
    "triangular": TRIANGULAR_SOLVE,
    "trsm": TRIANGULAR_SOLVE,
    "ungqr": "householder_product",
}
_ROUTINE = re.compile(
    rf"_*(?:lapack|blas|cusolver|cublas)[_$][a-z_]*?({'|'.join(_ROUTINES)})"
)


def factorization_operations(
    name: str, matrix: tuple[int, ...], right_hand_side: tuple[int, ...] = ()
) -> int:
    """Floating point operations of a factorization or solution.

    Arguments:
        name: of the primitive, one of `FACTORIZATIONS`.
        matrix: dimensions of the matrix, or of several with the last two theirs.
        right_hand_side: of `triangular_solve` those of what it solves for.
    """
    if name == TRIANGULAR_SOLVE:
        return matrix[-1] * math.prod(right_hand_side)
    return int(_PER_CUBE[name] * math.prod(matrix) * min(matrix[-2:]))


def factorization_of(target: str) -> str | None:
    """The primitive that a call of a library computes; None if it is none of these.

    Arguments:
        target: the call's name, as `lapack_sgetrf_ffi`.
    """
    found = _ROUTINE.match(target)
    return None if found is None else _ROUTINES[found[1]]
