"""Arena plot: addresses over time, of a plan or of the log of a run.

Boundaries to the right, addresses upwards, a rectangle for every interval that a value
spends in the arena.
"""

from __future__ import annotations

import os

import numpy as np

from coop_jax.base import plotting

# By Okabe and Ito, distinct for colour-blind readers; neighbours in time differ.
_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00")


def plot(
    address_map: np.ndarray,
    arena_bytes: int,
    path: str | os.PathLike[str],
    title: str | None,
) -> None:
    """Save the picture; the format follows the file's ending.

    Arguments:
        address_map: int64[intervals, 5], from `ArenaStats.address_map`.
        arena_bytes: the size of the arena.
        path: the file.
        title: the picture's title; None for the default.
    """
    figure = plotting.new_figure(
        "ArenaStats.plot(path)", "ArenaStats.address_map()", width=8
    )
    from matplotlib.patches import Rectangle

    axes = figure.subplots()
    rows = address_map.tolist()
    for number, (_, stored_at, loaded_at, offset, num_bytes) in enumerate(rows):
        axes.add_patch(
            Rectangle(
                (stored_at, offset / 2**20),
                loaded_at - stored_at,
                num_bytes / 2**20,
                facecolor=_COLOURS[number % len(_COLOURS)],
                edgecolor="white",
                linewidth=0.4,
            )
        )
    axes.set(
        xlim=(0, max((row[2] for row in rows), default=1) + 1),
        ylim=(0, max(arena_bytes, 1) / 2**20),
        xlabel="boundary of the step",
        ylabel="address in the arena, MiB",
        title=title or f"{len(rows)} values in {arena_bytes / 2**20:.1f} MiB",
    )
    plotting.save(figure, path)
