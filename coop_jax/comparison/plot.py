"""Plot: a comparison as a picture, bytes to the right, time of the executable upwards."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Protocol

from coop_jax.base import plotting

# By Okabe and Ito: distinct for colour-blind readers.
_STYLES = {
    "unmodified": ("#000000", "s"),
    "checkpoint": ("#D55E00", "^"),
    "coop_jax": ("#0072B2", "o"),
}


class PlottedRow(Protocol):
    """The attributes of a row of a comparison that are drawn."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def measured_bytes(self) -> int | None: ...
    @property
    def seconds(self) -> float | None: ...


def plot(
    rows: Sequence[PlottedRow],
    base_seconds: float,
    path: str | os.PathLike[str],
    title: str,
) -> None:
    """Save the picture; the format follows the file's ending.

    Arguments:
        rows: the rows of the comparison.
        base_seconds: seconds of the unmodified step, which times are relative to.
        path: the file.
        title: the picture's title.
    """
    figure = plotting.new_figure("Comparison.plot(path)", "Comparison.markdown()", width=7)
    axes = figure.subplots()
    for kind, (colour, marker) in _STYLES.items():
        points = _points((r for r in rows if r.kind == kind), base_seconds)
        if not points:
            continue
        sizes, times = zip(*points.values(), strict=True)
        axes.plot(sizes, times, marker, color=colour, label=kind)
        if kind != "unmodified":
            sizes, times = zip(*frontier(list(points.values())), strict=True)
            axes.step(sizes, times, where="post", color=colour, linewidth=1, alpha=0.6)
        if kind == "checkpoint":
            for name, point in points.items():
                axes.annotate(
                    name,
                    point,
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=7,
                    color=colour,
                )
    axes.set(
        xlabel="MiB that XLA needs for the step",
        ylabel="time, modelled, unmodified = 1",
        title=title,
    )
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False)
    plotting.save(figure, path)


def frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (bytes, time) that no other undercuts in both, by increasing bytes."""
    best = float("inf")
    kept = []
    for size, time in sorted(points):
        if time < best:
            best = time
            kept.append((size, time))
    return kept


def _points(
    rows: Iterable[PlottedRow], base_seconds: float
) -> dict[str, tuple[float, float]]:
    """Points (MiB, time relative to the unmodified step) by row name, of the rows where
    both are known."""
    return {
        row.name: (row.measured_bytes / 2**20, row.seconds / base_seconds)
        for row in rows
        if row.measured_bytes is not None and row.seconds is not None
    }
