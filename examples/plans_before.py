"""Plans of the paper's networks beside those of the planner before its search was remade.

    python examples/plans_before.py [--networks unet ...]

What the search recomputes in rooms of 90 to 45 % of what a step needs without eviction, by
live bytes and in a pool with addresses, and the smallest pool that is found, in MiB.
`results/plans_before.csv` has the same of the older planner; it was written by this script
with the package of that commit (`--record`, see `results/plans_before.md`). A graph whose
bytes are no longer what they were is not compared, and the script says so.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Traced, nothing is compiled.
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

from paper.experiment import NETWORKS, Model, graph_of

from coop_jax import planning

RECORD = pathlib.Path(__file__).parent / "results" / "plans_before.csv"
SHARES = (90, 75, 60, 45)  # In %.
ROOMS = ("live", "pool")
SMALLEST = "smallest"
SAME = 1e-4  # Of the step's seconds in %, or of MiB: what is printed is equal.
COLUMNS = ("network", "room", "before", "now", "now / before")
Key = tuple[str, str]  # Network, and room.
Row = tuple[int, float | None]  # Bytes without eviction, and what was found.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS)
    )
    parser.add_argument("--record", action="store_true", help="write what is found")
    arguments = parser.parse_args()
    if arguments.record:
        for network in arguments.networks:
            write(found(network))
        return
    before = read()
    print(f"| {' | '.join(COLUMNS)} |")
    print("| --- | --- |" + " ---: |" * (len(COLUMNS) - 2))
    ratios = []
    for network in arguments.networks:
        for key, (needed, now) in found(network).items():
            then_needed, then = before[key]
            if needed != then_needed:
                print(f"{key}: another graph, {then_needed} B before, {needed} B now")
                continue
            ratio = now / then if now is not None and then else None
            ratios.append((then, now))
            cells = [shown(then), shown(now), "–" if ratio is None else f"{ratio:.3f}"]
            print(f"| {' | '.join([*key, *cells])} |", flush=True)
    print("\n" + summary(ratios))


def summary(rows: list[tuple[float | None, float | None]]) -> str:
    """How many of them are worse, and by how much."""
    lost = sum(now is None and then is not None for then, now in rows)
    won = sum(then is None and now is not None for then, now in rows)
    both = [(then, now) for then, now in rows if then is not None and now is not None]
    better = sum(now < then - SAME for then, now in both)
    worse = [now / then for then, now in both if now > then + SAME]
    by = f", by at most {100 * (max(worse) - 1):.2f} %" if worse else ""
    return (
        f"Of {len(rows)} rows {better + won} are better than before ({won} had no plan), "
        f"{len(both) - better - len(worse)} equal, {len(worse) + lost} worse{by} "
        f"({lost} have no plan)."
    )


def found(network: str) -> dict[Key, Row]:
    """Recomputed seconds in % of the step's in each room, and the smallest pool in MiB."""
    graph = graph_of(network, Model.OURS).core
    rows: dict[Key, Row] = {}
    for room in ROOMS:
        options = {"limits_live_bytes": room == "live"}
        statistics = planning.unconstrained(graph, **options).statistics
        needed = statistics.max_live_bytes if room == "live" else statistics.peak_bytes
        for share in SHARES:
            rows[network, f"{share} % {room}"] = (
                needed,
                recomputed(graph, share * needed // 100, options),
            )
        if room == "pool":
            smallest = planning.minimum_pool(graph).capacity
            rows[network, f"{SMALLEST} {room}"] = needed, smallest / 2**20
    return rows


def recomputed(graph: planning.Graph, room: int, options: dict[str, bool]) -> float | None:
    try:
        plan = planning.plan_graph(graph, room, **options).statistics
    except planning.InfeasiblePoolError:
        return None
    return 100 * plan.recompute_seconds / plan.compute_seconds


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def read() -> dict[Key, Row]:
    with RECORD.open() as file:
        return {
            (network, room): (int(needed), float(value) if value else None)
            for network, room, needed, value in csv.reader(file)
        }


def write(rows: dict[Key, Row]) -> None:
    with RECORD.open("a") as file:
        writer = csv.writer(file, lineterminator="\n")
        for (network, room), (needed, value) in rows.items():
            writer.writerow(
                [network, room, needed, "" if value is None else f"{value:.6f}"]
            )


if __name__ == "__main__":
    main()
