"""Arena statistics: the copies into and out of the arena while a step ran.

The exchanges of a step in checked mode write a log (`xla_ext/ffi/arena/books.h`); this
module reads it. The same table can be made from the plan, which lists the copies that
should be made: the two are equal, event by event.
"""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np

from coop_jax import _ext
from coop_jax.arena import plot
from coop_jax.arena.layout import ArenaPlan

STORE, LOAD = 0, 1
_VARIABLE = "COOP_JAX_ARENA_DEBUG"
_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True, eq=False)
class ArenaStats:
    """The copies of one run of a step into and out of its arena.

    Attributes:
        arena_bytes: the size of the arena.
        events: int64, one row per copy in the order of execution: boundary, kind
            (0: stored, 1: loaded), tensor, offset, bytes.
    """

    arena_bytes: int
    events: np.ndarray

    @property
    def moved_bytes(self) -> int:
        """Bytes stored and bytes loaded, together."""
        return int(self.events[:, 4].sum())

    @property
    def high_water_bytes(self) -> int:
        """The largest end of a value in the arena, in bytes from its beginning."""
        return int((self.events[:, 3] + self.events[:, 4]).max(initial=0))

    def address_map(self) -> np.ndarray:
        """Intervals that values spent in the arena: int64[intervals, 5], one row for each:
        tensor, boundary that stored it, boundary that loaded it, offset, bytes."""
        since: dict[tuple[int, int], int] = {}
        rows = []
        for boundary, kind, tensor, offset, num_bytes in self.events.tolist():
            if kind == STORE:
                since[tensor, offset] = boundary
            else:
                begin = since.pop((tensor, offset))
                rows.append((tensor, begin, boundary, offset, num_bytes))
        return np.array(sorted(rows, key=lambda r: (r[1], r[3])), np.int64).reshape(-1, 5)

    def occupancy(self) -> np.ndarray:
        """Bytes in use after every exchange: int64[exchanges, 4], one row for each:
        boundary, bytes in use, free bytes below the arena's end, bytes of the largest free
        block."""
        blocks: dict[int, int] = {}
        rows = []
        for boundary, events in itertools.groupby(self.events.tolist(), lambda e: e[0]):
            for _, kind, _, offset, num_bytes in events:
                if kind == STORE:
                    blocks[offset] = num_bytes
                else:
                    del blocks[offset]
            used = sum(blocks.values())
            largest = _largest_gap(blocks, self.arena_bytes)
            rows.append((boundary, used, self.arena_bytes - used, largest))
        return np.array(rows, np.int64).reshape(-1, 4)

    def fragmentation(self) -> np.ndarray:
        """Fragmentation after every exchange: float64[exchanges], the part of the free
        bytes that is not in the largest free block; 0 where no byte is free."""
        occupancy = self.occupancy()
        free, largest = occupancy[:, 2], occupancy[:, 3]
        return 1 - np.divide(largest, free, out=np.ones(len(free)), where=free > 0)

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Save a picture of the address map; needs matplotlib.

        Arguments:
            path: the file; the format follows its ending.
            title: the picture's title; None for the default.
        """
        plot.plot(self.address_map(), self.arena_bytes, path, title)

    def __str__(self) -> str:
        occupancy = self.occupancy()
        lines = [
            f"arena of {self.arena_bytes / 2**20:.1f} MiB, used up to "
            f"{self.high_water_bytes / 2**20:.1f} MiB",
            f"  {len(occupancy)} exchanges, {len(self.events)} copies, "
            f"{self.moved_bytes / 2**20:.1f} MiB moved",
            f"  most in use {occupancy[:, 1].max(initial=0) / 2**20:.1f} MiB, "
            f"fragmentation at most {self.fragmentation().max(initial=0):.1%}",
        ]
        return "\n".join(lines)


def planned_stats(arena: ArenaPlan) -> ArenaStats:
    """The copies that a run has to make: loads before stores at every boundary, as the
    handlers make them."""
    loads = [
        (s.loaded_at, 0, i, (s.loaded_at, LOAD, s.tensor, s.offset, s.num_bytes))
        for i, s in enumerate(arena.stays)
    ]
    stores = [
        (s.stored_at, 1, i, (s.stored_at, STORE, s.tensor, s.offset, s.num_bytes))
        for i, s in enumerate(arena.stays)
    ]
    rows = [row for _, _, _, row in sorted(loads + stores)]
    return ArenaStats(arena.arena_bytes, np.array(rows, np.int64).reshape(-1, 5))


def recorded_stats(arena: ArenaPlan, exchange_log: int) -> ArenaStats | None:
    """The copies of the last run that finished, as the handlers logged them; None before
    the first.

    Arguments:
        exchange_log: number of the log of checked exchanges.
    """
    if not arena.stays:
        return planned_stats(arena)
    events = _ext.last_arena_events(exchange_log)
    return None if events is None else ArenaStats(arena.arena_bytes, np.array(events.rows))


def new_exchange_log() -> int:
    """A new number for the log of a step's checked exchanges."""
    return next(_numbers)


def is_debugged(arena_debug: bool | None) -> bool:
    """Whether exchanges are checked: the argument, or, if it is None, the environment
    variable's value."""
    if arena_debug is not None:
        return arena_debug
    return os.environ.get(_VARIABLE, "") not in ("", "0")


def _largest_gap(blocks: dict[int, int], end: int) -> int:
    largest, at = 0, 0
    for offset in sorted(blocks):
        largest = max(largest, offset - at)
        at = offset + blocks[offset]
    return max(largest, end - at)
