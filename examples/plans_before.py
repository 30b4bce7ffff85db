"""Plans beside those of the planner before its search was made anew.

    python examples/plans_before.py [--graphs unet "gpt2 on cpu" ...] [--shares 82 68 53]

The paper's eight networks, traced, and the ten of `compare` as XLA compiles them for a CPU:
what the search recomputes in rooms of some % of what a step needs without eviction, in
% of the step's seconds, by live bytes and (the paper's) in a pool with addresses; and the
smallest room that is found, in MiB. `results/plans_before.csv` has the older planner's:
`--save DIR` with this package writes the graphs, `--record DIR` with the package of that
commit plans them. A graph whose bytes are no longer what they were is not compared, and the
script says so.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing is run.

import numpy as np
from compare import networks as compared
from paper import experiment
from paper.networks import DONATED
from stored_graph import stored_graph

from coop_jax import planning

RECORD = pathlib.Path(__file__).parent / "results" / "plans_before.csv"
PAPER = tuple(experiment.NETWORKS)
GRAPHS = (*PAPER, *(f"{network} on cpu" for network in compared.NETWORKS))
SHARES = (90, 75, 60, 45)  # In %.
OTHER_SHARES = (82, 68, 53)  # Recorded as well.
SAME = 1e-4  # In % of the step's seconds, or MiB: less is no difference.
COLUMNS = ("graph", "room", "before", "now", "now / before")
Key = tuple[str, str]  # Graph, and room.
Row = tuple[int, float | None]  # Bytes without eviction, and what was found.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=GRAPHS)
    parser.add_argument(
        "--shares",
        nargs="+",
        type=int,
        choices=(*SHARES, *OTHER_SHARES),
        help="rooms, in %%; default: 90, 75, 60, 45 and the smallest",
    )
    parser.add_argument("--save", type=pathlib.Path, help="write the graphs there, and end")
    parser.add_argument("--record", type=pathlib.Path, help="plan the graphs from there")
    arguments = parser.parse_args()
    if arguments.save:
        for name in arguments.graphs:
            arrays = graph_of(name).arrays().items()
            given = {key: array for key, array in arrays if array is not None}
            np.savez(arguments.save / name, **given)
    elif arguments.record:
        for name in arguments.graphs:
            with np.load(arguments.record / f"{name}.npz", allow_pickle=False) as arrays:
                write(name, planning.Graph(**arrays), arguments.shares)
    else:
        compare(arguments.graphs, arguments.shares)


def compare(names: list[str], shares: list[int] | None) -> None:
    before = read()
    print(f"| {' | '.join(COLUMNS)} |")
    print("| --- | --- |" + " ---: |" * (len(COLUMNS) - 2))
    figures: list[tuple[str, float | None, float | None]] = []
    for name in names:
        for room, (needed, now) in found(name, graph_of(name), shares):
            then_needed, then = before[name, room]
            if needed != then_needed:
                print(f"{name}: another graph, {then_needed} B before, {needed} B now")
                continue
            figures.append((room, then, now))
            ratio = f"{now / then:.3f}" if now is not None and then else "–"
            cells = [name, room, shown(then), shown(now), ratio]
            print(f"| {' | '.join(cells)} |", flush=True)
    print()
    print(summary("seconds", [row[1:] for row in figures if "%" in row[0]]))
    if shares is None:
        print(summary("bytes", [row[1:] for row in figures if "%" not in row[0]]))


def summary(what: str, rows: list[tuple[float | None, float | None]]) -> str:
    """How many of them are worse, and by how much."""
    won = sum(then is None and now is not None for then, now in rows)
    lost = sum(now is None and then is not None for then, now in rows)
    both = [(then, now) for then, now in rows if then is not None and now is not None]
    better = sum(now < then - SAME for then, now in both)
    worse = [now - then for then, now in both if now > then + SAME]
    unit = "% of the step" if what == "seconds" else "MiB"
    by = f" (by at most {max(worse):.4f} {unit})" if worse else ""
    return (
        f"{what.capitalize()}: {len(rows)} rows, {better} less than before, {len(worse)} "
        f"more{by}, {won} that had no plan have one, {lost} have none any more."
    )


def graph_of(name: str) -> planning.Graph:
    """Of a network of the paper from its trace, of another as XLA:CPU stores its values."""
    network, _, target = name.partition(" on ")
    if not target:
        return experiment.graph_of(network, experiment.Model.OURS).core
    step = compared.NETWORKS[network].step(target)
    return stored_graph(step.step, step.args, target, DONATED)


def found(
    name: str, graph: planning.Graph, shares: list[int] | None
) -> Iterator[tuple[str, Row]]:
    """Every room's name, the bytes without eviction, and what was found in it."""
    for kind in ("live", "pool") if name in PAPER else ("live",):
        options = {"limits_live_bytes": kind == "live"}
        statistics = planning.unconstrained(graph, **options).statistics
        needed = statistics.max_live_bytes if kind == "live" else statistics.peak_bytes
        for share in shares or SHARES:
            recomputed = recomputed_percent(graph, share * needed // 100, options)
            yield f"{share} % {kind}", (needed, recomputed)
        if shares is not None:
            continue
        smallest = planning.minimum_pool(graph, **options).capacity
        yield f"smallest {kind}", (needed, smallest / 2**20)


def recomputed_percent(
    graph: planning.Graph, room: int, options: dict[str, bool]
) -> float | None:
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
            (name, room): (int(needed), float(value) if value else None)
            for name, room, needed, value in csv.reader(file)
        }


def write(name: str, graph: planning.Graph, shares: list[int] | None) -> None:
    with RECORD.open("a") as file:
        writer = csv.writer(file, lineterminator="\n")
        for room, (needed, value) in found(name, graph, shares):
            writer.writerow([name, room, needed, "" if value is None else f"{value:.6f}"])


if __name__ == "__main__":
    main()
