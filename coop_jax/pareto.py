"""Pareto: the picture of a comparison, bytes to the right, modelled time upwards."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coop_jax.comparison import Comparison, Row

# Okabe and Ito: told apart by colour-blind readers.
_STYLES = {
    "unmodified": ("#000000", "s"),
    "checkpoint": ("#D55E00", "^"),
    "coop_jax": ("#0072B2", "o"),
}


def plot(comparison: Comparison, path: str | os.PathLike[str], title: str | None) -> None:
    """Save the picture; the format follows the file's ending."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "`Comparison.plot(path)` needs matplotlib, which is not installed. Install "
            '`pip install "coop-jax[plot]"`, or use `Comparison.markdown()`.'
        ) from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    unmodified = comparison.unmodified
    for kind, (colour, marker) in _STYLES.items():
        rows = [r for r in comparison.rows if r.kind == kind and _is_drawn(r)]
        if not rows:
            continue
        points = [(r.measured_bytes / 2**20, _time(r, unmodified)) for r in rows]
        axes.plot(*zip(*points, strict=True), marker, color=colour, label=kind)
        if kind != "unmodified":
            axes.step(
                *zip(*frontier(points), strict=True),
                where="post",
                color=colour,
                linewidth=1,
                alpha=0.6,
            )
        if kind == "checkpoint":
            for row, point in zip(rows, points, strict=True):
                axes.annotate(
                    row.name,
                    point,
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=colour,
                )
    axes.set(
        xlabel="MiB that XLA needs for the step",
        ylabel="modelled time, unmodified = 1",
        title=title or f"Recomputation against memory, {comparison.target}",
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    # Without the version of matplotlib: equal pictures are equal files.
    metadata = {"Software": None} if str(path).endswith(".png") else None
    figure.savefig(path, dpi=150, metadata=metadata)


def frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other undercuts in both figures, from few bytes to many."""
    best = float("inf")
    kept = []
    for size, time in sorted(points):
        if time < best:
            best = time
            kept.append((size, time))
    return kept


def _is_drawn(row: Row) -> bool:
    return row.measured_bytes is not None and row.modelled_seconds is not None


def _time(row: Row, unmodified: Row) -> float:
    return row.modelled_seconds / unmodified.modelled_seconds
