"""CPU rates: what XLA:CPU reaches in products, convolutions, poolings, factorizations,
elementwise work and random bits.

    python examples/cpu_rates.py [--write]

Only the ratios decide between plans: they are those of `coop_jax.targets`' row for
processors, which is the same for all.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import pathlib
import platform
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from budget_table import markdown
from fresh_pages import seconds_of
from jax import lax

from coop_jax.trace.factorizations import factorization_operations

RESULTS = pathlib.Path(__file__).parent / "results" / "cpu_rates.md"
COLUMNS = ("operation", "operands", "ms", "1e9 operations/s", "1e9 bytes/s")
_RUNS = 15
_WORDS = 1_000_000
# Images, pixels a side, channels, window, groups of channels.
_CONVOLUTIONS = (
    *((32, 32, 16, 3, 1), (32, 32, 32, 3, 1), (32, 16, 128, 3, 1), (32, 16, 128, 1, 1)),
    *((8, 16, 128, 3, groups) for groups in (2, 4, 8, 16, 32, 64, 128)),
    *((8, 16, 32, 3, 32), (8, 32, 96, 5, 96), (8, 16, 128, 7, 128)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    args = parser.parse_args()
    rows = [*products(), *convolutions(), *volumes(), *poolings(), *factorizations()]
    rows += [*elementwise(), random_bits()]
    text = f"{header()}\n\n{markdown(rows, COLUMNS)}"
    if args.write:
        RESULTS.write_text(text + "\n")
    print(text)


def products() -> list[list[str]]:
    rows = []
    for size in (256, 512, 1024, 2048):
        square = jnp.ones((size, size))
        seconds = median_seconds(jnp.matmul, square, square)
        rows.append(row("product", f"{size} squared", seconds, 2 * size**3))
    heads = jnp.ones((128, 128, 32))
    seconds = median_seconds(lambda q, k: q @ k.transpose(0, 2, 1), heads, heads)
    rows.append(row("batched product", "128 of 128 x 32", seconds, 2 * 128**3 * 32))
    return rows


def convolutions() -> list[list[str]]:
    rows = []
    for batch, side, channels, window, groups in _CONVOLUTIONS:
        image = jnp.ones((batch, side, side, channels))
        kernel = jnp.ones((window, window, channels // groups, channels))
        seconds = median_seconds(functools.partial(convolved, groups), image, kernel)
        shape = f"{batch} x {side} x {side} x {channels}, {window} x {window}"
        operations = 2 * image.size * channels // groups * window**2
        name = "convolution"
        if groups > 1:
            name, shape = "grouped convolution", f"{shape}, {groups} groups"
        rows.append(row(name, shape, seconds, operations))
    return rows


def convolved(groups: int, image: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(
        image,
        kernel,
        *((1, 1), "SAME"),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def volumes() -> list[list[str]]:
    rows = []
    for batch, side, channels in ((1, 32, 8), (4, 16, 16), (4, 16, 64), (1, 16, 128)):
        image = jnp.ones((batch, *[side] * 3, channels))
        kernel = jnp.ones((3, 3, 3, channels, channels))
        seconds = median_seconds(convolved_volume, image, kernel)
        shape = f"{batch} x {side} x {side} x {side} x {channels}, 3 x 3 x 3"
        operations = 2 * image.size * channels * 3**3
        rows.append(row("convolution", shape, seconds, operations))
    return rows


def convolved_volume(image: Any, kernel: Any) -> Any:
    numbers = ("NDHWC", "DHWIO", "NDHWC")
    return lax.conv_general_dilated(
        image, kernel, (1, 1, 1), "SAME", dimension_numbers=numbers
    )


def poolings() -> list[list[str]]:
    """An operation for each element of the result and position of the window."""
    image = jnp.ones((8, 32, 32, 64))
    rows = []
    for window, stride in ((2, 2), (3, 1)):
        sizes, strides = (1, window, window, 1), (1, stride, stride, 1)
        for name, start, reduce in (("max", -jnp.inf, lax.max), ("sum", 0.0, lax.add)):

            def pooled(x: Any, how: tuple = (start, reduce, sizes, strides)) -> Any:
                return lax.reduce_window(x, *how, "SAME")

            taps = image.size // stride**2 * window**2
            shape = f"8 x 32 x 32 x 64, {window} x {window}, stride {stride}"
            rows.append(
                row(f"{name} of windows", shape, median_seconds(pooled, image), taps)
            )
    return rows


def factorizations() -> list[list[str]]:
    """Operations as `coop_jax.trace.factorizations` counts them."""
    noise = jax.random.normal(jax.random.key(0), (32, 128, 128))
    positive = noise @ noise.transpose(0, 2, 1) + 128 * jnp.eye(128)
    functions = {
        "cholesky": jnp.linalg.cholesky,
        "lu": lambda x: lax.linalg.lu(x)[0],
        "qr": lambda x: jnp.linalg.qr(x)[0],
        "eigh": lambda x: jnp.linalg.eigh(x)[1],
        "svd": lambda x: jnp.linalg.svd(x)[0],
    }
    return [
        row(
            *(name, "32 of 128 squared", median_seconds(function, positive)),
            factorization_operations(name, positive.shape),
        )
        for name, function in functions.items()
    ]


def elementwise() -> list[list[str]]:
    """In blocks that are used again, so that pages take no time; with reductions and
    transforms along rows, or along columns, of 2048."""
    x = jax.random.uniform(jax.random.key(0), (2048, 2048), minval=0.1, maxval=0.9)
    functions = {
        "multiplication": lambda x: 1.5 * x,
        **{f.__name__: f for f in (jnp.tanh, jnp.exp, jnp.sin, jnp.cos, jnp.tan)},
        **{f.__name__: f for f in (lax.cbrt, lax.erf_inv, lax.lgamma, lax.digamma)},
        "power": lambda x: x**1.7,
        "atan2": lambda x: lax.atan2(x, x),
        "remainder": lambda x: x % 0.3,
        "argmax of rows": functools.partial(jnp.argmax, axis=1),
        "argmax of columns": functools.partial(jnp.argmax, axis=0),
        "cumsum of rows": functools.partial(jnp.cumsum, axis=1),
        "cumsum of columns": functools.partial(jnp.cumsum, axis=0),
        "cummax of rows": functools.partial(lax.cummax, axis=1),
        "cumlogsumexp of rows": functools.partial(lax.cumlogsumexp, axis=1),
        "transform of rows": jnp.fft.rfft,
    }
    return [
        row(name, "16 MiB", median_seconds(function, x), x.size, 2 * x.nbytes)
        for name, function in functions.items()
    ]


def random_bits() -> list[str]:
    seconds = median_seconds(lambda k: jax.random.bits(k, (_WORDS,)), jax.random.key(0))
    return row("random bits", "a million words", seconds, 100 * _WORDS)


def row(
    name: str, operands: str, seconds: float, operations: int, touched_bytes: int = 0
) -> list[str]:
    rates = [operations, touched_bytes]
    cells = [f"{1e-9 * rate / seconds:.1f}" if rate else "" for rate in rates]
    return [name, operands, f"{1e3 * seconds:.2f}", *cells]


def median_seconds(function: Callable, *args: Any) -> float:
    step = jax.jit(function)
    seconds_of(step, args)
    return statistics.median(seconds_of(step, args) for _ in range(_RUNS))


def header() -> str:
    version = importlib.metadata.version
    return (
        "`python examples/cpu_rates.py --write`. Random bits count as 100 operations a "
        f"word. Python {platform.python_version()}, jax {version('jax')}; "
        f"{platform.machine()}, {os.cpu_count()} cores."
    )


if __name__ == "__main__":
    main()
