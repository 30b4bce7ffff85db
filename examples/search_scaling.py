"""How long the search takes, from a thousand operations to fifty thousand.

    python examples/search_scaling.py [--write]

Random steps: a forward half with skip connections and a backward half that mirrors it
(`optimality_gap.random_graph`), planned at 60 % of what they keep alive without
recomputation. Seconds are of the whole plan: search, offsets, validation.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import budget_table
import optimality_gap

from coop_jax import _ext

RESULTS = pathlib.Path(__file__).parent / "results"
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
SHARE = 0.6
PACKING_EFFORT = 2_000_000  # as `remat_train_step` has it
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="table and picture")
    arguments = parser.parse_args()
    points = [(size, *planned(size)) for size in SIZES]
    rows = [[f"{n:,}", f"{s:.2f}", f"{1e3 * s / n:.3f}", f"{o:.3f}"] for n, s, o in points]
    columns = ("operations", "seconds", "ms per operation", "modelled time ×")
    text = f"{budget_table.header()}\n\n{budget_table.markdown(rows, columns)}"
    print(text)
    if arguments.write:
        (RESULTS / "search_scaling.md").write_text(f"{text}\n")
        plot([(n, s) for n, s, _ in points])


def planned(num_ops: int) -> tuple[float, float]:
    """Seconds to plan, the median of several runs; and the time that the plan takes,
    relative to no recomputation."""
    graph = optimality_gap.random_graph(num_ops, seed=0)
    options = _ext.PlanOptions(
        policy="search", limits_live_bytes=True, packing_effort=PACKING_EFFORT
    )
    peak = _ext.unconstrained(graph, options).statistics.max_live_bytes
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        schedule = _ext.plan(graph, int(SHARE * peak), options)
        assert not _ext.validate(graph, schedule)
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[REPEATS // 2], schedule.statistics.compute_overhead


def plot(points: list[tuple[int, float]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    sizes, seconds = zip(*points, strict=True)
    axes.loglog(sizes, seconds, "o-", label="search")
    linear = [seconds[-1] * size / sizes[-1] for size in sizes]
    axes.loglog(sizes, linear, ":", color="gray", label="in proportion")
    axes.set(xlabel="operations", ylabel="seconds to plan", title="Planner `search`")
    axes.legend()
    figure.savefig(RESULTS / "search_scaling.png", dpi=150)


if __name__ == "__main__":
    main()
