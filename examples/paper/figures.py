"""Figures from the rows: overhead, minimum memory, fragmentation, latency, ablations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
from paper import style, summary
from paper.experiment import ABLATIONS, COMPARED, Model, Row
from paper.style import GREY, METHOD_COLOURS, METHOD_MARKERS
from paper.summary import LABELS, NetworkResults

_GIB = 2**30


def draw_all(folder: pathlib.Path) -> list[pathlib.Path]:
    """Every figure that the results are enough for."""
    written = []
    for model in Model:
        found = summary.load(folder, model.value)
        if not found:
            continue
        suffix = "" if model is Model.PAPER else f"_{model.value}"
        written += [
            _overhead(found, folder / f"overhead{suffix}.png"),
            _minimum_memory(found, folder / f"minimum_memory{suffix}.png"),
        ]
        if model is Model.OURS:
            continue
        written += [
            _fragmentation(found, folder / "fragmentation.png"),
            _latency(found, folder / "search_latency.png"),
        ]
        with_ablations = {
            network: results
            for network, results in found.items()
            if results.methods().issuperset(ABLATIONS)
        }
        if with_ablations:
            written.append(_ablations(with_ablations, folder / "ablations.png"))
    return written


def _overhead(found: dict[str, NetworkResults], path: pathlib.Path) -> pathlib.Path:
    """One panel a network; below it, a mark for every budget without a plan."""
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.9 * rows), squeeze=False
    )
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (network, results) in zip(axes.flat, found.items(), strict=False):
        for lane, method in enumerate(COMPARED):
            curve = results.curve(method)
            colour = METHOD_COLOURS[method]
            axis.plot(
                [row.ratio for row in curve],
                [row.compute_overhead or np.nan for row in curve],
                color=colour,
                marker=METHOD_MARKERS[method],
                markersize=3,
                linewidth=1.2,
                label=LABELS[method],
            )
            failed = [row.ratio for row in curve if row.outcome != "ok"]
            axis.plot(
                failed,
                [-0.04 - 0.045 * lane] * len(failed),
                color=colour,
                marker="x",
                markersize=3.5,
                linestyle="none",
                transform=axis.get_xaxis_transform(),
                clip_on=False,
            )
        bound = results.case.lower_bound_bytes / results.case.reference_bytes
        axis.axvline(bound, color=GREY, linestyle=":", linewidth=1)
        top = [
            row.compute_overhead
            for method in COMPARED
            for row in results.curve(method)
            if row.outcome == "ok"
        ]
        axis.set_ylim(1, min(max(1.1, 1.03 * max(top)), 2.5))
        axis.set_xlim(min(bound, 1) - 0.02, 1.01)
        axis.tick_params(axis="x", pad=19, length=0)
        reference = results.case.reference_bytes / _GIB
        axis.set_title(f"{LABELS[network]}  (1.0 = {reference:.1f} GiB)")
    for axis in axes[-1]:
        axis.set_xlabel("memory ratio (budget / no eviction)")
    for axis in axes[:, 0]:
        axis.set_ylabel("compute overhead (×)")
    _legend(figure, axes.flat[0])
    figure.text(
        0.5,
        0.005,
        "× below an axis: no plan at that budget.  Dotted: lower bound of any method.  "
        "Curves above 2.5 are cut off.",
        ha="center",
        fontsize=8,
        color="#555555",
    )
    figure.tight_layout(rect=(0, 0.02, 1, 0.95))
    return style.save(figure, path)


def _minimum_memory(found: dict[str, NetworkResults], path: pathlib.Path) -> pathlib.Path:
    figure, axis = plt.subplots(figsize=(10, 3.6))

    def share(results: NetworkResults, method: str) -> float:
        return 100 * results.minimum_bytes(method) / results.case.reference_bytes

    _bars(axis, found, COMPARED, share, "{:.0f}")
    for x, results in enumerate(found.values()):
        bound = 100 * results.case.lower_bound_bytes / results.case.reference_bytes
        label = "lower bound of any method" if x == 0 else None
        axis.hlines(bound, x - 0.42, x + 0.42, color="black", label=label)
    axis.set_ylabel("minimum memory\n(% of no eviction)")
    _legend(figure, axis)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    return style.save(figure, path)


def _fragmentation(found: dict[str, NetworkResults], path: pathlib.Path) -> pathlib.Path:
    """The mean over the budgets at which all three have a plan and have to evict."""
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), sharex=True)
    definitions = {
        "fragmentation_block_used": "block just found\ncounted as used",
        "fragmentation": "block just found\ncounted as free",
    }
    for axis, (field, text) in zip(axes, definitions.items(), strict=True):

        def mean(results: NetworkResults, method: str, field: str = field) -> float:
            rows = _common_rows(results, method)
            values = [100 * getattr(row, field) for row in rows]
            return float(np.mean(values)) if values else np.nan

        _bars(axis, found, COMPARED, mean, "{:.1f}")
        axis.set_ylabel(f"fragmentation (%)\n{text}")
    _legend(figure, axes[0])
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return style.save(figure, path)


def _common_rows(results: NetworkResults, method: str) -> list[Row]:
    evicting = [
        {r.ratio for r in results.curve(m) if r.outcome == "ok" and r.searches}
        for m in COMPARED
    ]
    ratios = set.intersection(*evicting)
    return [row for row in results.curve(method) if row.ratio in ratios]


def _latency(found: dict[str, NetworkResults], path: pathlib.Path) -> pathlib.Path:
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), sharex=True)

    def seconds(results: NetworkResults, method: str) -> float:
        rows = results.tightest()
        return 1e3 * rows[method].search_seconds if rows else np.nan

    def pieces(results: NetworkResults, method: str) -> float:
        rows = results.tightest()
        return rows[method].pieces_examined if rows else np.nan

    _bars(axes[0], found, COMPARED, seconds, "{:.2g}")
    _bars(axes[1], found, COMPARED, pieces, None)
    axes[0].set_ylabel("search latency (ms)\nper training step")
    axes[1].set_ylabel("tensors looked at\nper training step")
    for axis in axes:
        axis.set_yscale("log")
    _legend(figure, axes[0])
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return style.save(figure, path)


def _ablations(found: dict[str, NetworkResults], path: pathlib.Path) -> pathlib.Path:
    methods = ("coop", *ABLATIONS)
    figure, axes = plt.subplots(2, 1, figsize=(10, 5.6), sharex=True)

    def share(results: NetworkResults, method: str) -> float:
        return 100 * results.minimum_bytes(method) / results.case.reference_bytes

    def overhead(results: NetworkResults, method: str) -> float:
        rows = results.tightest(methods)
        return 100 * (rows[method].compute_overhead - 1) if rows else np.nan

    _bars(axes[0], found, methods, share, "{:.0f}")
    _bars(axes[1], found, methods, overhead, "{:.0f}")
    axes[0].set_ylabel("minimum memory\n(% of no eviction)")
    axes[1].set_ylabel("added compute (%), at the\ntightest budget all four can do")
    axes[1].set_yscale("log")
    _legend(figure, axes[0])
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return style.save(figure, path)


def _bars(
    axis: plt.Axes,
    found: dict[str, NetworkResults],
    methods: Sequence[str],
    value: Callable[[NetworkResults, str], float],
    text: str | None,
) -> None:
    """A group of bars a network, one a method."""
    width = 0.84 / len(methods)
    for i, method in enumerate(methods):
        x = np.arange(len(found)) + (i - (len(methods) - 1) / 2) * width
        heights = [value(results, method) for results in found.values()]
        bars = axis.bar(
            x, heights, width * 0.94, color=METHOD_COLOURS[method], label=LABELS[method]
        )
        if text is not None:
            labels = ["" if np.isnan(h) else text.format(h) for h in heights]
            axis.bar_label(bars, labels, fontsize=7, padding=1)
    axis.set_xticks(range(len(found)), [LABELS[network] for network in found])
    axis.grid(axis="x", visible=False)


def _legend(figure: plt.Figure, axis: plt.Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(handles))
