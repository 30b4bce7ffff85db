"""What must hold of every plan of the search, on thousands of random graphs.

    python examples/planner_properties.py [--graphs 10000] [--processes 2] [--minutes 60]

Graphs of 5 to 1,000 operations, uniform in the logarithm, of the families of
`tests/oracles/random_graphs.py`, half of them with addresses in a pool and half with a
limit of the bytes alive. `tests/oracles/planner_properties.py` says what is tried. A
violation is printed with the seed of its graph; `--seeds 17 42` tries those again.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import pathlib
import sys
import time
from collections.abc import Iterable

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

from oracles import planner_properties
from oracles.planner_properties import PROPERTIES, Report

COLUMNS = ("property", "tried", "violations", "graphs", "median, %", "worst, %")
MOST_SHOWN = 10  # Violations of each property.
PROGRESS_EVERY = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", help="these, and no others")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="at most")
    arguments = parser.parse_args()
    seeds = arguments.seeds or range(arguments.first, arguments.first + arguments.graphs)
    show(reports(seeds, arguments.processes, 60 * arguments.minutes))


def reports(seeds: Iterable[int], processes: int, most_seconds: float) -> list[Report]:
    """Those that are ready in time: the first, but for a few."""
    start = time.perf_counter()
    found = []
    num_violations = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for report in pool.imap_unordered(planner_properties.report, seeds, chunksize=4):
            found.append(report)
            num_violations += len(report.violations)
            took = time.perf_counter() - start
            if took > most_seconds:
                break
            if len(found) % PROGRESS_EVERY == 0:
                print(f"{len(found)}: {num_violations}, {took:.0f} s", file=sys.stderr)
    return found


def show(found: list[Report]) -> None:
    tried = collections.Counter()
    violations = {name: [] for name in PROPERTIES}
    for report in found:
        tried.update(report.tried)
        for violation in report.violations:
            violations[violation.property].append(violation)
    print(f"| {' | '.join(COLUMNS)} |")
    print("| --- |" + " ---: |" * (len(COLUMNS) - 1))
    for name in PROPERTIES:
        excess = sorted(violation.excess for violation in violations[name])
        cells = [
            str(tried[name]),
            str(len(excess)),
            str(len({v.seed for v in violations[name]})),
        ]
        if excess:
            cells += [f"{100 * excess[len(excess) // 2]:.3f}", f"{100 * excess[-1]:.3f}"]
        else:
            cells += ["–", "–"]
        print(f"| {name} | {' | '.join(cells)} |")
    sizes = sorted(report.num_ops for report in found)
    print(
        f"\n{len(found)} graphs of {sizes[0]} to {sizes[-1]} operations, "
        f"{sizes[len(sizes) // 2]} in the median."
    )
    for name in PROPERTIES:
        ordered = sorted(violations[name], key=lambda v: (-v.excess, v.seed))
        for violation in ordered[:MOST_SHOWN]:
            print(f"\n{violation}")


if __name__ == "__main__":
    main()
