"""Packing: `planning.pack` against best fit, on rectangles cut into blocks.

    python examples/packing_table.py [--count 30] [--seconds 60]

A rectangle of time and bytes is cut into 100, 200 or 500 blocks
(`tests/oracles/tilings.py`), without waste or with 1 % of its area lost. Its height is
known to be enough, and without waste the optimum; `pack` stops there. Best fit puts blocks,
the largest or longest-lived first, into the smallest gap that holds them, as XLA does; the
better of the two. All figures are over the rectangle's height; the bound is the most bytes
alive at one step, in the mean.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

import numpy as np
from oracles import tilings

from coop_jax import _ext, planning

SIZES = (100, 200, 500)
WASTES = (0.0, 0.01)
COLUMNS = (
    "blocks",
    "waste, %",
    "bound",
    "best fit, mean",
    "best fit, worst",
    "`pack`, mean",
    "`pack`, worst",
    "at the optimum, %",
    "s, mean",
    "s, worst",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{' ---: |' * len(COLUMNS)}")
    for num_blocks in SIZES:
        for waste in WASTES:
            row = cells(num_blocks, waste, arguments.count, arguments.seconds)
            print(f"| {' | '.join(row)} |", flush=True)


def cells(num_blocks: int, waste: float, count: int, seconds: float) -> list[str]:
    results = np.array(
        [ratios(tilings.cut(num_blocks, seed, waste), seconds) for seed in range(count)]
    )
    bound, best_fit, packed, took = results.T
    return [
        str(num_blocks),
        f"{100 * waste:g}",
        f"{bound.mean():.4f}",
        f"{best_fit.mean():.4f}",
        f"{best_fit.max():.4f}",
        f"{packed.mean():.4f}",
        f"{packed.max():.4f}",
        f"{100 * np.mean(packed <= 1):.0f}",
        f"{took.mean():.2f}",
        f"{took.max():.1f}",
    ]


def ratios(blocks: list[tuple[int, int, int]], seconds: float) -> tuple[float, ...]:
    """The bound, best fit and `pack` over the optimum; the seconds of `pack`."""
    columns = np.ascontiguousarray(np.array(blocks, np.int64).T)
    best_fit = _ext.xla_heap_bytes(*columns, alignment=1)
    start = time.perf_counter()
    # The peak is read rather than refused: the height is what is good enough.
    packed = _ext.pack(
        *columns,
        alignment=1,
        effort=2**62,
        target_peak_bytes=tilings.HEIGHT,
        seconds=seconds,
    )
    took = time.perf_counter() - start
    bound = planning.pack(blocks, capacity=2**62, seconds=0.01).lower_bound_bytes
    peaks = (bound, best_fit, packed.peak_bytes)
    return *(peak / tilings.HEIGHT for peak in peaks), took


if __name__ == "__main__":
    main()
