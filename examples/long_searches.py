"""The default plan against the best of long searches, on random layered graphs.

    python examples/long_searches.py [--runs 10] [--seconds 60]

Graphs of 250, 500 and 1,000 operations in pools of 90, 80 and 70 % of what they need
without eviction: what the default options recompute, the lower bound that comes with that
plan, and the least of several searches with other seeds that go on for `--seconds` each.
Every search is written to `--record` as it ends, with its seconds, and is not done again.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

from oracles import random_graphs

from coop_jax import planning

RECORD = pathlib.Path(__file__).parent / "results" / "long_searches.csv"
SIZES = (250, 500, 1000)
SHARES = (90, 80, 70)  # In %.
COLUMNS = (
    "operations",
    "pool, %",
    "at least, %",
    "recomputed, %",
    "s",
    "searches",
    "best of them, %",
    "recomputed / best",
)
Key = tuple[int, int, int]  # Operations, share and seed.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--record", type=pathlib.Path, default=RECORD)
    arguments = parser.parse_args()
    found = read(arguments.record)
    # A run of every cell before the next of any: whatever is there is of all.
    for seed in range(1, arguments.runs + 1):
        for num_ops in SIZES:
            for share in SHARES:
                key = (num_ops, share, seed)
                if key in found:
                    continue
                found[key] = percent(num_ops, share, seed=seed, seconds=arguments.seconds)
                write(arguments.record, key, arguments.seconds, found[key])
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + " ---: |" * len(COLUMNS))
    for num_ops in SIZES:
        for share in SHARES:
            cells = row(num_ops, share, found)
            print(f"| {num_ops} | {share} | {' | '.join(cells)} |", flush=True)
    print("\nA dash: no plan was found. none: there is none, by the lower bound on bytes.")


def row(num_ops: int, share: int, found: dict[Key, float | None]) -> list[str]:
    graph, pool = graph_and_pool(num_ops, share)
    if planning.lower_bound(graph)[0] > pool:
        return ["none"] + ["–"] * (len(COLUMNS) - 3)
    runs = [value for key, value in found.items() if key[:2] == (num_ops, share)]
    best = min((value for value in runs if value is not None), default=None)
    start = time.perf_counter()
    try:
        plan = planning.plan_graph(graph, pool).statistics
    except planning.InfeasiblePoolError:
        ours = least = None
    else:
        ours = 100 * plan.recompute_seconds / plan.compute_seconds
        least = 100 * plan.recompute_bound_seconds / plan.compute_seconds
    took = time.perf_counter() - start
    ratio = ours / best if ours is not None and best else None
    shown = [f"{took:.1f}", str(len(runs)), _percent(best)]
    return [
        _percent(least),
        _percent(ours),
        *shown,
        "–" if ratio is None else f"{ratio:.3f}",
    ]


def percent(num_ops: int, share: int, **options: float) -> float | None:
    """What the plan recomputes, in % of the program's seconds; None: there is none."""
    graph, pool = graph_and_pool(num_ops, share)
    try:
        plan = planning.plan_graph(graph, pool, **options).statistics
    except planning.InfeasiblePoolError:
        return None
    return 100 * plan.recompute_seconds / plan.compute_seconds


def graph_and_pool(num_ops: int, share: int) -> tuple[planning.Graph, int]:
    graph = random_graphs.layered(num_ops, 0)
    peak = planning.unconstrained(graph).statistics.peak_bytes
    return graph, share * peak // 100


def read(record: pathlib.Path) -> dict[Key, float | None]:
    if not record.exists():
        return {}
    with record.open() as file:
        rows = list(csv.reader(file))
    return {
        (int(num_ops), int(share), int(seed)): float(value) if value else None
        for num_ops, share, seed, _, value in rows
    }


def write(record: pathlib.Path, key: Key, seconds: float, value: float | None) -> None:
    with record.open("a") as file:
        shown = "" if value is None else f"{value:.6f}"
        csv.writer(file, lineterminator="\n").writerow([*key, f"{seconds:g}", shown])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
