"""How far plans are from the least recomputation there is, at most.

    python examples/least_recomputation.py [--graphs resnet50 layered-500 ...] [--seconds S]

The paper's eight networks (traced, nothing is compiled) and random layered graphs: what the
search recomputes in a room of 90 to 45 % of the bytes alive without recomputation, and the
lower bound that comes with every plan, in % of the program's seconds. No plan goes below
the bound, so the difference is the most that any better plan could save. `--seconds` lets
the search go on for so long.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

from oracles import random_graphs
from paper.experiment import NETWORKS, Model, graph_of

from coop_jax import planning

SHARES = (0.9, 0.75, 0.6, 0.45)
SHARES_OF_RANDOM = (0.9, 0.8, 0.7)  # Below, many of these graphs cannot be run at all.
RANDOM = ("layered-250", "layered-500", "layered-1000")
COLUMNS = (
    "graph",
    "operations",
    "room, %",
    "recomputed, %",
    "at least, %",
    "to gain at most, %",
    "s",
)


def main() -> None:
    known = [*NETWORKS, *RANDOM]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", choices=known, default=known)
    parser.add_argument("--seconds", type=float, help="of the search, for each plan")
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print("| --- |" + " ---: |" * (len(COLUMNS) - 1))
    gains = []
    for name in arguments.graphs:
        for cells, gain in rows(name, arguments.seconds):
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            if name in NETWORKS and gain is not None:
                gains.append(gain)
    if gains:
        print(
            f"\n{len(gains)} plans of networks; a better one can save, in % of the step, "
            f"at most: median {statistics.median(gains):.2f}, worst {max(gains):.2f}."
        )


def rows(name: str, seconds: float | None) -> Iterator[tuple[list[str], float | None]]:
    """Of one graph: cells without its name, and how much there is to gain at most."""
    if name in NETWORKS:
        graph, shares = graph_of(name, Model.OURS).core, SHARES
    else:
        family, num_ops = name.split("-")
        graph = random_graphs.FAMILIES[family](int(num_ops), 0)
        shares = SHARES_OF_RANDOM
    options = {"limits_live_bytes": True, "seconds": seconds}
    peak = planning.unconstrained(graph, **options).statistics.max_live_bytes
    for share in shares:
        start = time.perf_counter()
        try:
            found = planning.plan_graph(graph, int(share * peak), **options).statistics
        except planning.InfeasiblePoolError:
            cells, gain = ["–", "–", "–"], None
        else:
            recomputed = 100 * found.recompute_seconds / found.compute_seconds
            least = 100 * found.recompute_bound_seconds / found.compute_seconds
            gain = recomputed - least
            cells = [f"{percent:.2f}" for percent in (recomputed, least, gain)]
        took = f"{time.perf_counter() - start:.1f}"
        yield [str(graph.num_ops), f"{100 * share:.0f}", *cells, took], gain


if __name__ == "__main__":
    main()
