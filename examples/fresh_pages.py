"""Fresh pages: what XLA:CPU takes for temporaries, and what a plan gains by fewer.

    python examples/fresh_pages.py [--steps ...] [--budget PERCENT] [--write]

First an executable that writes one temporary of so many bytes and sums it, by itself: the
pages that the operating system gives to every run, and the seconds. Then steps under a
budget, by plans for all of the room and by plans that leave room unused where memory takes
more time than it saves (the quirk `fresh_pages` switched off and on), run in turns with the
step as written.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import pathlib
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from budget_table import markdown, progress
from planning_seconds import STEPS

import coop_jax
from coop_jax import backends

RESULTS = pathlib.Path(__file__).parent / "results" / "fresh_pages_cpu.md"
SIZES = (4, 16, 24, 31, 33, 64, 200)  # In MiB.
PAGES = ("temporaries, MiB", "pages from the system in each run", "ms", "ms / MiB")
COLUMNS = ("step", "all of the room", "time ×", "as much as is worth it", "time ×")
_RUNS = 15
_PAGE_BYTES = resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--budget", type=float, default=80, metavar="PERCENT")
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    args = parser.parse_args()

    parts = [header(args.budget), markdown([pages_row(size) for size in SIZES], PAGES)]
    rows = []
    for name in args.steps:
        rows.append(step_row(name, *STEPS[name](), args.budget))
        progress(markdown(rows, COLUMNS))
    text = "\n\n".join([*parts, markdown(rows, COLUMNS)])
    if args.write:
        RESULTS.write_text(text + "\n")
    print(text)


def pages_row(size: int) -> list[str]:
    """The cells of an executable with a temporary of so many MiB."""
    part = faulted_part(size)
    compiled = writing(size)
    ms = 1e3 * statistics.median(seconds_of(compiled, (1.0,)) for _ in range(_RUNS))
    return [str(size), f"{part:.0%}", f"{ms:.1f}", f"{ms / size:.2f}"]


def faulted_part(size: int) -> float:
    """Of the pages of a temporary of so many MiB, the part that the system gives to a run:
    in the median, as the allocator gets its own blocks in the first runs."""
    compiled = writing(size)
    faults = []
    for _ in range(_RUNS):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        jax.block_until_ready(compiled(1.0))
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(faults) * _PAGE_BYTES / (size << 20)


def writing(size: int) -> Any:
    """An executable whose temporaries are one array of so many MiB, with JAX 0.12."""

    def filled_and_summed(value):
        array = jnp.full((size, 1 << 18), value, jnp.float32)
        return jax.lax.optimization_barrier(array).sum()

    return jax.jit(filled_and_summed).lower(jnp.float32(1)).compile()


def step_row(name: str, step: Callable, args: tuple[Any, ...], percent: float) -> list[str]:
    """The cells of a step under a budget."""
    plan = functools.partial(coop_jax.remat_train_step, step, budget=f"{percent:g}%")
    with backends.registered("cpu", backends.without("cpu", "fresh_pages")):
        whole = plan()
        parts = [part_of(whole, args)]
    worthwhile = plan()
    parts.append(part_of(worthwhile, args))
    versions = [jax.jit(step), whole, worthwhile]
    times: list[list[float]] = [[] for _ in versions]
    for run in range(_RUNS + 1):
        for version, own in zip(versions, times, strict=True):
            seconds = seconds_of(version, args)
            if run:
                own.append(seconds)
    as_written, *planned = map(statistics.median, times)
    cells = zip(parts, planned, strict=True)
    return [name, *(c for part, own in cells for c in (part, f"{own / as_written:.2f}"))]


def part_of(step: Any, args: tuple[Any, ...]) -> str:
    """XLA's bytes for a planned step, relative to the step as written."""
    plan = step.plan(*args)
    return f"{plan.measured_bytes / plan.unmodified_bytes:.1%}"


def seconds_of(call: Callable, args: tuple[Any, ...]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    jax.block_until_ready(call(*args))
    return time.perf_counter() - start


def header(percent: float) -> str:
    version = importlib.metadata.version
    return (
        "`python examples/fresh_pages.py --write`. Python "
        f"{platform.python_version()}, jax {version('jax')}; {platform.machine()}, "
        f"{os.cpu_count()} cores, {platform.system()}, pages of {_PAGE_BYTES} bytes. Steps "
        f"under a budget of {percent:g} %."
    )


if __name__ == "__main__":
    main()
