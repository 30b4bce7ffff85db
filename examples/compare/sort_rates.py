"""How fast sorts are: elements and stages of a bitonic network a second, by row length.

    python examples/compare/sort_rates.py PROFILES/point_net.json.xz   # run_ahead.py's
    python examples/compare/sort_rates.py                              # on the device here

Operations are what one element of a stage takes at the target's rate of elementwise work;
`trace.costs.SORT_OPERATIONS` is about their number.
"""

from __future__ import annotations

import json
import lzma
import math
import pathlib
import re
import statistics
import sys
import time

import jax
import jax.numpy as jnp

from coop_jax.targets import Target, named, target_of

_SORT = re.compile(r"%(sort\.[\d.]+) = \(\w+\[([\d,]+)\].* sort\(.*dimensions=\{(\d+)\}")
_HERE = ((4096, 256), (1000, 1000), (1, 1_000_000))
_RUNS = 5


def main() -> None:
    if sys.argv[1:]:
        target, rows = named("h200"), of_profile(pathlib.Path(sys.argv[1]))
    else:
        target, rows = target_of(jax.devices()[0]), here()
    print("| rows | length | ms | elements × stages, 1e9/s | operations |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for count, length, seconds in rows:
        print(line(count, length, seconds, target))


def of_profile(path: pathlib.Path) -> list[tuple[int, int, float]]:
    """Rows, length and seconds of the sorts of all executables, the same ones once."""
    found: dict[tuple[int, int], list[float]] = {}
    with lzma.open(path, "rt") as file:
        profiles = json.load(file)
    for profile in profiles.values():
        for name, shape, along in _SORT.findall(profile["module"]):
            dimensions = [int(size) for size in shape.split(",")]
            length = dimensions[int(along)]
            seconds, _ = profile["times"][name.replace(".", "_")]
            found.setdefault((math.prod(dimensions) // length, length), []).append(seconds)
    return [(*rows, statistics.median(times)) for rows, times in sorted(found.items())]


def here() -> list[tuple[int, int, float]]:
    """The same of single sorts on the first device that JAX finds."""
    found = []
    for shape in _HERE:
        values = jax.random.normal(jax.random.key(0), shape)
        step = jax.jit(jnp.argsort)
        jax.block_until_ready(step(values))
        times = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            jax.block_until_ready(step(values))
            times.append(time.perf_counter() - start)
        found.append((*shape, statistics.median(times)))
    return found


def line(count: int, length: int, seconds: float, target: Target) -> str:
    merges = (length - 1).bit_length()
    work = count * length * merges * (merges + 1) // 2
    return (
        f"| {count} | {length} | {1e3 * seconds:.3f} | {1e-9 * work / seconds:.2f} | "
        f"{target.vector_rate * seconds / work:.0f} |"
    )


if __name__ == "__main__":
    main()
