"""Cells of the tables of tuned values: what another value changes, over all steps."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one step at one budget; `overhead` and `plan` are None where it is refused."""

    xla_bytes: int
    overhead: float | None
    num_compilations: int
    seconds: float
    plan: Any


def text_of(value: Any) -> str:
    """A value, as it is printed."""
    if isinstance(value, tuple):
        return ", ".join(text_of(v) for v in value)
    if dataclasses.is_dataclass(value):
        return f"{value.most_copies:g}"
    return "none" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def cells(usual: list[list[Figures]], found: list[list[Figures]]) -> list[str]:
    """The cells of a row.

    Arguments:
        usual: figures by step and budget, with the values as they are.
        found: the same with another value.
    """
    pairs = [
        (a, b)
        for before, after in zip(usual, found, strict=True)
        for a, b in zip(before, after, strict=True)
    ]
    smallest = [
        after[0].xla_bytes / before[0].xla_bytes
        for before, after in zip(usual, found, strict=True)
    ]
    times = [
        b.overhead / a.overhead
        for before, after in zip(usual, found, strict=True)
        for a, b in zip(before[1:], after[1:], strict=True)
        if a.overhead is not None and b.overhead is not None
    ]
    counts = [sum(f.num_compilations for f in side) for side in zip(*pairs, strict=True)]
    seconds = [sum(f.seconds for f in side) for side in zip(*pairs, strict=True)]
    refused = [sum(f.overhead is None for f in side) for side in zip(*pairs, strict=True)]
    return [
        f"{sum(a.plan != b.plan for a, b in pairs)} of {len(pairs)}",
        _spread(smallest),
        _spread(times),
        "" if refused == [0, 0] else f"{refused[0]} → {refused[1]}",
        f"{counts[0]} → {counts[1]}",
        f"{seconds[1] / seconds[0]:.2f} ×",
    ]


def _spread(ratios: list[float]) -> str:
    """The median change, in %, with the least and the greatest one."""
    if not ratios:
        return ""
    low, middle, high = (
        100 * (x - 1) for x in (min(ratios), statistics.median(ratios), max(ratios))
    )
    if max(abs(low), abs(high)) < 0.005:
        return "="
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"
