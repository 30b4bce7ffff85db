"""Packed blocks: where blocks with known lifetimes live, and a check of it."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.base.strict_values import real_number, shown, whole_bytes

# Steps of packing that no machine does in the seconds that anybody waits.
_UNBOUNDED_EFFORT = 2**62


@dataclasses.dataclass(frozen=True)
class Block:
    """A block to pack.

    Attributes:
        first, last: the steps at which it lives, both included.
        bytes: its size in bytes.
        offset: the byte where it must begin; None: anywhere.
    """

    first: int
    last: int
    bytes: int
    offset: int | None = None


@dataclasses.dataclass(frozen=True)
class Packed:
    """Where blocks lie.

    Attributes:
        offsets: the byte where each block begins, in the order given.
        peak_bytes: the highest end of any block.
        lower_bound_bytes: no packing has a lower peak. Where the two are equal, the
            packing is an optimum.
    """

    offsets: tuple[int, ...]
    peak_bytes: int
    lower_bound_bytes: int


def pack_blocks(
    blocks: Iterable[Block | Sequence[int]],
    capacity: int | None,
    alignment: int,
    seconds: float,
) -> Packed:
    """A packing, checked apart from the search. Arguments as of `planning.pack`."""
    what = "`planning.pack(seconds=...)`"
    seconds = real_number(what, seconds, "Give it a second or more.")
    if seconds == 0:
        raise ValueError(f"{what} must be positive. Got 0.0. Give it a second or more.")
    what = "`planning.pack(capacity=...)`"
    if capacity is not None:
        todo = "Give bytes as an int, or None."
        capacity = whole_bytes(what, capacity, todo, least=0)
    rows = [_block(index, given) for index, given in enumerate(blocks)]
    first, last, sizes = (
        np.array([getattr(row, name) for row in rows], np.int64).reshape(len(rows))
        for name in ("first", "last", "bytes")
    )
    fixed = [-1 if row.offset is None else row.offset for row in rows]
    packing = _ext.pack(
        first,
        last,
        sizes,
        np.array(fixed, np.int64).reshape(len(rows)),
        alignment=alignment,
        effort=_UNBOUNDED_EFFORT,
        seconds=seconds,
        target_peak_bytes=capacity or 0,
    )
    offsets = packing.offsets.tolist()
    bound, peak = _check(rows, offsets, alignment)
    assert peak == packing.peak_bytes, "the packing's peak is another than it says"
    return Packed(tuple(offsets), peak, bound)


def _block(index: int, given: Any) -> Block:
    if not isinstance(given, Block):
        if not isinstance(given, Sequence | np.ndarray) or len(given) != 3:
            raise TypeError(
                "`planning.pack(blocks=...)` must have blocks that are `Block`s or tuples "
                f"(first, last, bytes). Got {shown(given)} at {index}. Write it as one."
            )
        given = Block(*given)
    for name in ("first", "last", "bytes", "offset"):
        value = getattr(given, name)
        if name == "offset" and value is None:
            continue
        what = f"`{name}` of `planning.pack(blocks=...)[{index}]`"
        least = {} if name in ("first", "last") else {"least": 0}
        whole_bytes(what, value, "Give it as an int.", **least)
    return given


def _check(blocks: Sequence[Block], offsets: list[int], alignment: int) -> tuple[int, int]:
    """Raises unless no two blocks share bytes; the bound and the peak.

    A sweep over the steps that keeps what is alive in order of offsets: of blocks that
    meet, some are neighbours when the later one begins.
    """
    rounded = [-(-block.bytes // alignment) * alignment for block in blocks]
    events = sorted(
        event
        for index, block in enumerate(blocks)
        if rounded[index] > 0
        for event in ((block.last + 1, 0, index), (block.first, 1, index))
    )
    alive: list[tuple[int, int]] = []  # (offset, end), in order.
    live_bytes = bound = peak = 0
    for _, begins, index in events:
        block, size = blocks[index], rounded[index]
        span = (offsets[index], offsets[index] + size)
        at = bisect.bisect_left(alive, span)
        if not begins:
            alive.pop(at)
            live_bytes -= size
            continue
        is_apart = (at == 0 or alive[at - 1][1] <= span[0]) and (
            at == len(alive) or span[1] <= alive[at][0]
        )
        is_in_place = block.offset in (None, span[0])
        if not (is_apart and is_in_place) or span[0] < 0 or span[0] % alignment:
            raise AssertionError(
                "This is a bug in coop_jax, please report it: a packing puts block "
                f"{index} at {span[0]}, where it may not be or meets another"
            )
        alive.insert(at, span)
        live_bytes += size
        fixed_end = 0 if block.offset is None else span[1]
        bound = max(bound, live_bytes, fixed_end)
        peak = max(peak, span[1])
    return bound, peak
