"""Loops picture: the tables of `loops_table.py`, bytes to the right and time upwards."""

from __future__ import annotations

import pathlib
import re
from typing import Any

from coop_jax.base import plotting
from coop_jax.comparison.plot import frontier

# By Okabe and Ito: distinct for colour-blind readers.
_STYLES = {"as written": ("#000000", "s"), "checkpoint": ("#D55E00", "^")}
_OURS = "#0072B2"
_OF_POLICIES = "checkpoint, "
_HEIGHT_PER_ROW = 3.5

Points = dict[str, tuple[float, float]]


def plot_all(results: pathlib.Path) -> None:
    """Draw every table of loops next to its file.

    Arguments:
        results: the folder with `loops_*.md`; pictures have the names of the files.
    """
    for path in sorted(results.glob("loops_*.md")):
        plot(path, path.with_suffix(".png"))


def plot(path: pathlib.Path, picture: pathlib.Path) -> None:
    """Draw all tables of a file, each in its own axes."""
    tables = read(path.read_text())
    columns = min(2, len(tables))
    rows = -(-len(tables) // columns)
    figure = plotting.new_figure("loops_table.py --plot", str(path), width=5.5 * columns)
    figure.set_figheight(_HEIGHT_PER_ROW * rows)
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for (title, (time, points)), axes in zip(tables.items(), all_axes, strict=False):
        _draw(axes, points)
        axes.set(xlabel="MiB that XLA needs", ylabel=time, title=title)
    for axes in all_axes:
        axes.remove()
    plotting.save(figure, picture)


def read(text: str) -> dict[str, tuple[str, Points]]:
    """By heading the label of the time, measured where it is, and the points by version:
    MiB and time relative to the step as written."""
    found = {}
    for title, body in re.findall(r"^### (.*)\n\n((?:\|.*\n)+)", text, re.MULTILINE):
        names, _, *lines = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in body.splitlines()
        ]
        is_measured = "measured ×" in names
        time = names.index("measured ×" if is_measured else "modelled ×")
        label = "time, as written = 1, " + ("measured" if is_measured else "modelled")
        points = {line[0]: (float(line[1]), float(line[time].split()[0])) for line in lines}
        found[title] = label, points
    return found


def _draw(axes: Any, points: Points) -> None:
    for kind, (colour, marker) in _STYLES.items():
        of_kind = [point for name, point in points.items() if name.startswith(kind)]
        axes.plot(*zip(*of_kind, strict=True), marker, color=colour, label=kind)
    policies: dict[tuple[float, float], list[str]] = {}
    for name, point in points.items():
        if name.startswith(_OF_POLICIES):
            policies.setdefault(point, []).append(name.removeprefix(_OF_POLICIES))
    for point, names in policies.items():
        axes.annotate(
            "; ".join(names),
            point,
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=7,
            color=_STYLES["checkpoint"][0],
        )
    ours = [point for name, point in points.items() if name.startswith("coop_jax")]
    if ours:
        # Hollow: a policy may be at the same place.
        axes.plot(
            *zip(*ours, strict=True),
            "o",
            color=_OURS,
            markerfacecolor="none",
            label="coop_jax",
        )
        best = frontier(ours)
        # A budget above the last of them gets its plan.
        best.append((max(size for size, _ in points.values()), best[-1][1]))
        line = zip(*best, strict=True)
        axes.step(*line, where="post", color=_OURS, linewidth=1, alpha=0.6)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(frameon=False, fontsize=8)
