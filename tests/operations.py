"""Operations that lay their operands and results out in orders of their own, or may.

Each is a function of arrays, and its arguments.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jax import lax

_NUMBERS = np.random.default_rng(0)


def _floats(*shape, dtype="float32"):
    return jnp.asarray(_NUMBERS.normal(size=shape), dtype)


def _complex(*shape):
    return lax.complex(_floats(*shape), _floats(*shape))


_SQUARE = _floats(2, 5, 5)
_TALL = _floats(2, 6, 4)
_POSITIVE = _SQUARE @ jnp.swapaxes(_SQUARE, -1, -2) + 5 * jnp.eye(5)
_SYMMETRIC = _SQUARE + jnp.swapaxes(_SQUARE, -1, -2)
_INTEGERS = jnp.asarray(_NUMBERS.integers(-9, 9, (5, 6)), jnp.int32)
_INDICES = jnp.asarray([[0, 2], [3, 1], [4, 0]], jnp.int32)
_IMAGES = _floats(2, 6, 7, 3)

LINEAR_ALGEBRA = {
    "cholesky": (jnp.linalg.cholesky, _POSITIVE),
    "cholesky_upper": (functools.partial(jnp.linalg.cholesky, upper=True), _POSITIVE),
    "cholesky_complex": (
        lambda x: jnp.linalg.cholesky(x @ jnp.swapaxes(x.conj(), -1, -2) + 9 * jnp.eye(5)),
        _complex(5, 5),
    ),
    "cho_solve": (lambda a, b: jsl.cho_solve((a, True), b), _POSITIVE[0], _SQUARE[0]),
    "lu": (lax.linalg.lu, _SQUARE),
    "lu_solve": (lambda a, b: jsl.lu_solve(jsl.lu_factor(a), b), _SQUARE[0], _SQUARE[1]),
    "scipy_lu": (jsl.lu, _SQUARE[0]),
    "qr": (jnp.linalg.qr, _TALL),
    "qr_complete": (functools.partial(jnp.linalg.qr, mode="complete"), _TALL),
    "qr_complex": (jnp.linalg.qr, _complex(5, 3)),
    "householder_product": (lax.linalg.householder_product, _TALL, _floats(2, 4)),
    "eigh": (jnp.linalg.eigh, _SYMMETRIC),
    "eigh_complex": (lambda x: jnp.linalg.eigh(x + x.conj().T), _complex(5, 5)),
    "eigvalsh": (jnp.linalg.eigvalsh, _SYMMETRIC),
    "eig": (jnp.linalg.eig, _SQUARE),
    "eigvals": (jnp.linalg.eigvals, _SQUARE),
    "svd": (jnp.linalg.svd, _TALL),
    "svd_thin": (functools.partial(jnp.linalg.svd, full_matrices=False), _TALL),
    "svd_complex": (jnp.linalg.svd, _complex(4, 6)),
    "schur": (jsl.schur, _SQUARE[0]),
    "hessenberg": (jsl.hessenberg, _SQUARE[0]),
    "tridiagonal": (lax.linalg.tridiagonal, _SYMMETRIC),
    "tridiagonal_solve": (
        lax.linalg.tridiagonal_solve,
        *_floats(3, 2, 5),
        _floats(2, 5, 3),
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        _POSITIVE,
        _floats(2, 5, 3),
    ),
    "triangular_solve_right": (
        lambda a, b: lax.linalg.triangular_solve(a, b, transpose_a=True),
        _POSITIVE,
        _floats(2, 3, 5),
    ),
    "symmetric_product": (
        lambda a, c: lax.linalg.symmetric_product(a, c, symmetrize_output=True),
        _TALL,
        _floats(2, 6, 6),
    ),
    "solve": (jnp.linalg.solve, _POSITIVE, _TALL[:, :5]),
    "inv": (jnp.linalg.inv, _SQUARE),
    "det": (jnp.linalg.det, _SQUARE),
    "slogdet": (jnp.linalg.slogdet, _SQUARE),
    "lstsq": (lambda a, b: jnp.linalg.lstsq(a, b)[0], _TALL[0], _floats(6, 2)),
    "pinv": (jnp.linalg.pinv, _TALL[0]),
    "expm": (jsl.expm, 0.1 * _SQUARE[0]),
    "polar": (lambda x: jsl.polar(x, method="svd"), _TALL[0]),
}

TRANSFORMS = {
    "fft": (jnp.fft.fft, _complex(4, 6)),
    "ifft": (jnp.fft.ifft, _complex(4, 6)),
    "rfft": (jnp.fft.rfft, _floats(4, 6)),
    "irfft": (jnp.fft.irfft, _complex(4, 4)),
    "fft2": (jnp.fft.fft2, _complex(3, 4, 6)),
    "fftn": (jnp.fft.fftn, _complex(3, 4, 6)),
    "ifftn": (jnp.fft.ifftn, _complex(3, 4, 6)),
    "rfftn": (jnp.fft.rfftn, _floats(3, 4, 6)),
    "irfftn": (jnp.fft.irfftn, _complex(3, 4, 4)),
    "fft_along_rows": (functools.partial(jnp.fft.fft, axis=0), _complex(4, 6)),
}

ORDER = {
    "sort": (functools.partial(lax.sort, dimension=0), _floats(5, 6)),
    "sort_pairs": (lambda x, y: lax.sort((x, y), num_keys=1), _floats(5, 6), _INTEGERS),
    "argsort": (functools.partial(jnp.argsort, axis=0), _INTEGERS),
    "top_k": (lambda x: lax.top_k(x, 3), _floats(5, 6)),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), _floats(5, 6)),
    "argmax": (functools.partial(jnp.argmax, axis=0), _floats(5, 6)),
    "median": (functools.partial(jnp.median, axis=0), _floats(5, 6)),
}


def _scatter(method):
    def operation(x, indices, updates):
        return getattr(x.at[indices[:, 0], indices[:, 1]], method)(updates)

    return operation, _floats(5, 6), _INDICES, _floats(3)


INDICES = {
    f"scatter_{method}": _scatter(method)
    for method in ("set", "add", "multiply", "min", "max")
} | {
    "scatter_rows": (
        lambda x, i, u: x.at[i[:, 0]].add(u),
        _floats(5, 6),
        _INDICES,
        _TALL[0, 0:3, :1],
    ),
    "gather": (lambda x, i: x[i[:, 0], i[:, 1]], _floats(5, 6), _INDICES),
    "gather_rows": (lambda x, i: x[i[:, 1]], _floats(5, 6), _INDICES),
    "take_along_axis": (
        lambda x, i: jnp.take_along_axis(x, abs(i) % 5, 0),
        _floats(5, 6),
        _INTEGERS,
    ),
    "dynamic_slice": (
        lambda x, i: lax.dynamic_slice(x, i[0], (2, 3)),
        _floats(5, 6),
        _INDICES,
    ),
    "dynamic_update_slice": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, i[0]),
        _floats(5, 6),
        _floats(2, 2),
        _INDICES,
    ),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), _floats(5, 6), _floats(5, 2)),
    "pad": (lambda x: lax.pad(x, 0.0, ((1, 0, 1), (0, 2, 0))), _floats(5, 6)),
    "reverse": (lambda x: x[::-1, ::-1], _floats(5, 6)),
    "reshape": (lambda x: x.reshape(10, 3), _floats(5, 6)),
    "transpose": (lambda x: x.transpose(2, 0, 1), _floats(2, 3, 4)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.int16), _floats(5, 6)),
}


def _convolution(x, kernel, numbers, **options):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=numbers, **options
    )


_NHWC = ("NHWC", "HWIO", "NHWC")
_NCHW = ("NCHW", "OIHW", "NCHW")
WINDOWS = {
    "convolution": (lambda x, k: _convolution(x, k, _NHWC), _IMAGES, _floats(3, 2, 3, 4)),
    "convolution_channels_first": (
        lambda x, k: _convolution(x, k, _NCHW),
        _floats(2, 3, 6, 7),
        _floats(4, 3, 3, 2),
    ),
    "convolution_by_channel": (
        lambda x, k: _convolution(x, k, _NHWC, feature_group_count=3),
        _IMAGES,
        _floats(3, 3, 1, 6),
    ),
    "convolution_dilated": (
        lambda x, k: _convolution(x, k, _NHWC, rhs_dilation=(2, 1)),
        _IMAGES,
        _floats(2, 2, 3, 4),
    ),
    "convolution_gradients": (
        lambda x, k: jax.grad(lambda *a: (_convolution(*a, _NHWC) ** 2).sum(), (0, 1))(
            x, k
        ),
        _IMAGES,
        _floats(3, 3, 3, 2),
    ),
    "convolution_transposed": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"),
        _IMAGES,
        _floats(2, 2, 3, 4),
    ),
    "max_pool": (
        lambda x: lax.reduce_window(
            x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 1, 1), "VALID"
        ),
        _IMAGES,
    ),
    "max_pool_gradient": (
        jax.grad(
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
                ** 2
            ).sum()
        ),
        _IMAGES,
    ),
    "sum_pool": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 1, 1, 1), "SAME"),
        _IMAGES,
    ),
    "cumsum": (functools.partial(jnp.cumsum, axis=0), _floats(5, 6)),
    "cumprod": (functools.partial(jnp.cumprod, axis=1), _floats(5, 6)),
    "cummax": (functools.partial(lax.cummax, axis=0), _floats(5, 6)),
    "cummin": (functools.partial(lax.cummin, axis=0, reverse=True), _floats(5, 6)),
    "cumlogsumexp": (functools.partial(lax.cumlogsumexp, axis=0), _floats(5, 6)),
    "associative_scan": (
        lambda x: lax.associative_scan(jnp.multiply, x, axis=1),
        _floats(5, 6),
    ),
    "scan": (
        lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x),
        _floats(5, 6),
    ),
    "reduce": (lambda x: (x.sum(0), x.max(1), (x > 0).any(0)), _floats(5, 6)),
    "reduce_pairs": (
        lambda x, i: lax.reduce(
            (x, i),
            (jnp.float32(0), jnp.int32(0)),
            lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])),
            (0,),
        ),
        _floats(5, 6),
        _INTEGERS,
    ),
}

PRODUCTS = {
    "dot": (jnp.dot, _floats(5, 6), _floats(6, 3)),
    "dot_of_transposed": (lambda x, y: x.T @ y.T, _floats(6, 5), _floats(3, 6)),
    "batched_dot": (
        lambda x, y: jnp.einsum("bsh,bht->tbs", x, y),
        _floats(2, 3, 4),
        _floats(2, 4, 5),
    ),
    "dot_of_halves": (
        lambda x, y: lax.dot(x, y, preferred_element_type=jnp.float32),
        _floats(5, 6, dtype="bfloat16"),
        _floats(6, 3, dtype="bfloat16"),
    ),
    "dot_of_integers": (lambda x: lax.dot(x, x.T), _INTEGERS),
    "ragged_dot": (
        lax.ragged_dot,
        _floats(5, 6),
        _floats(2, 6, 3),
        jnp.asarray([2, 3], jnp.int32),
    ),
    "attention": (
        jax.nn.dot_product_attention,
        _floats(2, 5, 2, 4),
        _floats(2, 5, 2, 4),
        _floats(2, 5, 2, 4),
    ),
}

RANDOM = {
    f"random_{implementation}": (
        lambda key: (
            jax.random.normal(key[0], (5, 6)),
            jax.random.permutation(key[1], jnp.arange(30).reshape(5, 6), axis=1),
            jax.random.split(key[2], (2, 2)),
        ),
        jax.random.split(jax.random.key(0, impl=implementation), 3),
    )
    for implementation in ("threefry2x32", "rbg", "unsafe_rbg")
} | {
    "random_gamma": (
        lambda key, alpha: jax.random.gamma(key, jnp.exp(alpha)),
        jax.random.key(1),
        _floats(3, 4),
    ),
    "rng_bit_generator": (
        lambda key: lax.rng_bit_generator(key, (5, 6)),
        jnp.arange(4, dtype=jnp.uint32),
    ),
}

FAMILIES = {
    "linear_algebra": LINEAR_ALGEBRA,
    "transforms": TRANSFORMS,
    "order": ORDER,
    "indices": INDICES,
    "windows": WINDOWS,
    "products": PRODUCTS,
    "random": RANDOM,
}
OPERATIONS = {name: entry for family in FAMILIES.values() for name, entry in family.items()}
