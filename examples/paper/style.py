"""Style: colours that colour-blind readers can tell apart, and how figures are saved."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILION, PURPLE, SKY, GREY = "#D55E00", "#CC79A7", "#56B4E9", "#999999"

METHOD_COLOURS = {
    "dtr": VERMILION,
    "dte": ORANGE,
    "coop": BLUE,
    "coop_no_window": GREEN,
    "coop_no_partition": PURPLE,
    "coop_no_in_place": SKY,
}
METHOD_MARKERS = {
    "dtr": "s",
    "dte": "^",
    "coop": "o",
    "coop_no_window": "v",
    "coop_no_partition": "D",
    "coop_no_in_place": "P",
}

plt.rcParams.update(
    {
        "figure.dpi": 130,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "legend.frameon": False,
    }
)


def save(figure: plt.Figure, path: pathlib.Path) -> pathlib.Path:
    # Without the version of matplotlib: equal figures are equal files.
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)
    return path
