"""Plotting: matplotlib, imported only where something is drawn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(needed_by: str, instead: str, width: float) -> Figure:
    """An empty figure, `width` by 4.5 inches.

    Arguments:
        needed_by, instead: for the error: the caller that needs matplotlib, and an
            alternative that does not.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            f"`{needed_by}` needs matplotlib, which is not installed. Install "
            f'`pip install "coop-jax[plot]"`, or use `{instead}`.'
        ) from error
    return Figure(figsize=(width, 4.5), layout="constrained")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file; the format follows the file's ending."""
    # Without the version of matplotlib: equal pictures are equal files.
    metadata = {"Software": None} if str(path).endswith(".png") else None
    figure.savefig(path, dpi=150, metadata=metadata)
