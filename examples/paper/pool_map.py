"""Pool map: who lies where in the pool, from when to when.

Time across (seconds of the planned step, recomputations included), address up, one
rectangle a stay of a tensor in the pool. Replayed from the schedule alone.
"""

from __future__ import annotations

import dataclasses
import pathlib

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import PatchCollection
from matplotlib.patches import Patch, Rectangle
from paper import experiment, records, style, summary
from paper.experiment import Model
from paper.networks import Scale
from paper.summary import LABELS

from coop_jax.planning import Graph, Schedule, Statistics, plan_graph

_COMPUTE, _RECOMPUTE = 0, 1
_GIB = 2**30

COLOURS = {
    "parameter": style.GREY,
    "expensive": style.BLUE,
    "cheap": style.SKY,
    "evicted and back": style.VERMILION,
}
TEXTS = {
    "parameter": "parameter, optimizer state, data",
    "expensive": "expensive (high cost density)",
    "cheap": "cheap (low cost density)",
    "evicted and back": "evicted and back (recomputed)",
}
# Many networks, but one shows it well: its tensors are large and differ in size.
NETWORK = "unet"


@dataclasses.dataclass(frozen=True)
class Stay:
    """A tensor in its block, from its making to its end."""

    tensor: int
    kind: str
    offset: int
    num_bytes: int
    start_seconds: float
    end_seconds: float


def stays(graph: Graph, schedule: Schedule, density_threshold: float) -> list[Stay]:
    """Every stay of a schedule; the threshold separates cheap from expensive."""
    sizes, producer = graph.tensor_bytes, graph.producer
    seconds, pinned = graph.op_seconds, graph.tensor_pinned
    made_bytes = np.zeros(graph.num_ops)
    inner = producer >= 0
    np.add.at(made_bytes, producer[inner], sizes[inner])
    placements: dict[int, list[tuple[int, int]]] = {}
    for step, tensor, offset, _ in schedule.placements.tolist():
        placements.setdefault(step, []).append((tensor, offset))

    def kind_of(tensor: int, step_kind: int) -> str:
        op = producer[tensor]
        if op < 0 or pinned[tensor]:
            return "parameter"
        if step_kind == _RECOMPUTE:
            return "evicted and back"
        is_cheap = seconds[op] < density_threshold * made_bytes[op]
        return "cheap" if is_cheap or seconds[op] == 0 else "expensive"

    clock, found = 0.0, []
    here: dict[int, tuple[str, int, float]] = {
        tensor: ("parameter", offset, 0.0)
        for tensor, offset in schedule.initial_placements.tolist()
    }

    def end(tensor: int) -> None:
        kind, offset, start = here.pop(tensor, (None, 0, 0.0))
        if kind is not None and sizes[tensor]:
            found.append(Stay(tensor, kind, offset, int(sizes[tensor]), start, clock))

    for step, (step_kind, index) in enumerate(schedule.steps.tolist()):
        if step_kind not in (_COMPUTE, _RECOMPUTE):
            end(index)
            continue
        for tensor, offset in placements.get(step, ()):
            here[tensor] = (kind_of(tensor, step_kind), offset, clock)
        clock += seconds[index]
    for tensor in list(here):
        end(tensor)
    return found


def draw_compared(
    folder: pathlib.Path,
    network: str = NETWORK,
    model: Model = Model.PAPER,
    scale: Scale = Scale.PAPER,
    methods: tuple[str, ...] = ("dtr", "coop"),
    ratio: float | None = None,
) -> pathlib.Path:
    """Methods beside each other in the same pool, by default the tightest for all."""
    graph, case = experiment.build_case(network, model, scale)
    if ratio is None:
        found = summary.load(folder, model.value).get(network)
        ratio = found.tightest_ratio() if found is not None else None
    capacity = experiment.pool_bytes(case, 0.6 if ratio is None else ratio)
    schedules = {
        method: plan_graph(graph.core, capacity, experiment.options(method))
        for method in methods
    }
    threshold = plan_graph(
        graph.core, case.reference_bytes, experiment.options("coop")
    ).statistics.density_threshold
    figure, axes = plt.subplots(
        1, len(methods), figsize=(6.6 * len(methods), 5), sharey=True, squeeze=False
    )
    longest = 1e3 * max(
        s.statistics.compute_seconds + s.statistics.recompute_seconds
        for s in schedules.values()
    )
    for axis, (method, schedule) in zip(axes.flat, schedules.items(), strict=True):
        _draw(axis, stays(graph.core, schedule, threshold))
        program = 1e3 * schedule.statistics.compute_seconds
        axis.set_title(f"{LABELS[method]}: {_caption(schedule.statistics)}")
        axis.set_xlim(0, longest)
        axis.set_ylim(0, capacity / _GIB)
        axis.axvline(program, color="black", linestyle=":", linewidth=0.8)
        axis.set_xlabel("time in the planned step (ms); dotted: without recomputation")
    axes[0, 0].set_ylabel("address in the pool (GiB)")
    figure.legend(
        handles=[
            Patch(facecolor=colour, label=TEXTS[kind]) for kind, colour in COLOURS.items()
        ]
        + [Patch(facecolor="white", edgecolor="#888888", label="free")],
        loc="upper center",
        ncols=len(COLOURS) + 1,
    )
    figure.suptitle(
        f"{LABELS[network]}, one training step in a pool of {capacity / _GIB:.2f} GiB "
        f"({100 * capacity / case.reference_bytes:.0f} % of what it needs without "
        "eviction)",
        y=0.925,
        fontsize=10,
    )
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    suffix = "" if (network, model) == (NETWORK, Model.PAPER) else f"_{network}"
    suffix += "" if model is Model.PAPER else f"_{model.value}"
    return style.save(figure, folder / f"pool_map{suffix}.png")


def _caption(statistics: Statistics) -> str:
    return (
        f"{statistics.compute_overhead:.2f} × compute, "
        f"{100 * statistics.fragmentation_rate_block_used:.1f} % fragmentation, "
        f"{statistics.forced_evictions} evictions"
    )


def _draw(axis: plt.Axes, found: list[Stay]) -> None:
    for kind, colour in COLOURS.items():
        rectangles = [
            Rectangle(
                (1e3 * stay.start_seconds, stay.offset / _GIB),
                1e3 * (stay.end_seconds - stay.start_seconds),
                stay.num_bytes / _GIB,
            )
            for stay in found
            if stay.kind == kind
        ]
        axis.add_collection(
            PatchCollection(rectangles, facecolor=colour, edgecolor="white", linewidth=0.25)
        )
    axis.grid(visible=False)


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="One pool map, of any network.")
    parser.add_argument("network", choices=list(experiment.NETWORKS))
    parser.add_argument("--model", choices=[m.value for m in Model], default="paper")
    parser.add_argument("--methods", nargs="+", default=["dtr", "coop"])
    parser.add_argument("--ratio", type=float, help="memory ratio")
    parser.add_argument("--results", type=pathlib.Path, default=records.RESULTS)
    given = parser.parse_args()
    model, methods = Model(given.model), tuple(given.methods)
    print(
        draw_compared(
            given.results,
            given.network,
            model,
            methods=methods,
            ratio=given.ratio,
        )
    )


if __name__ == "__main__":
    main()
