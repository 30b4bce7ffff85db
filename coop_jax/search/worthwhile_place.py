"""Worthwhile place: where loops keep so few bytes that to have more would take more time.

A host takes time to have memory, as it maps pages at their first use. Where that is so, the
plan for a budget is not always the one that uses all of it: a value that is kept takes the
time of its pages in place of that of its recomputation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from coop_jax.search.stretches import Stretch
from coop_jax.search.worthwhile_bytes import MARGIN


@dataclasses.dataclass(frozen=True)
class TimeOfMemory:
    """The time that a run of a step takes to have its temporaries, on one device.

    Arguments:
        seconds_for_temporaries: the seconds for so many bytes of them.
        free_bytes: the most bytes that take none; 0 where none take any.
        fixed_bytes: bytes of arguments and results; 0 where each device has a part of them.
        unmodified_bytes: XLA's figure for the step as written.
    """

    seconds_for_temporaries: Callable[[int], float]
    free_bytes: int
    fixed_bytes: int
    unmodified_bytes: int

    @property
    def free_total(self) -> int:
        """XLA's figure of a plan whose temporaries are expected to take no time, as XLA may
        need more than expected."""
        return self.fixed_bytes + self.free_bytes - int(self.free_bytes * MARGIN)

    @property
    def matters(self) -> bool:
        """Whether a run of the step as written takes any."""
        return self.seconds_with(self.unmodified_bytes) > 0

    def seconds_with(self, total_bytes: int) -> float:
        """The seconds where XLA's figure is so many bytes."""
        return self.seconds_for_temporaries(max(0, total_bytes - self.fixed_bytes))

    def expected_with(self, total_bytes: int) -> float:
        """The seconds where so many bytes are expected; none only with a margin."""
        temp_bytes = max(0, total_bytes - self.fixed_bytes)
        if total_bytes > self.free_total:
            temp_bytes = max(temp_bytes, self.free_bytes + 1)
        return self.seconds_for_temporaries(temp_bytes)


def worthwhile_place(
    stretch: Stretch, aim: int, rest_bytes: int, memory: TimeOfMemory, num_devices: int
) -> int:
    """The place of a stretch of pairs, from one on to its end, with the fewest modelled
    seconds of the loops and of memory.

    Arguments:
        stretch: the stretch.
        aim: the place that is expected to keep a budget.
        rest_bytes: XLA's figure for a plan that saves nothing, on each device.
        memory: the time of memory.
        num_devices: the number of devices: places are bytes of all of them together.
    """
    menu = stretch.menu
    assert menu is not None, "pairs are planned"

    def seconds_at(place: int) -> float:
        pairs = menu.saving(place - stretch.base_bytes)
        seconds = sum(pair.seconds for pair in pairs) / num_devices
        return seconds + memory.expected_with(rest_bytes - place // num_devices)

    free = (rest_bytes - memory.free_total) * num_devices
    further = [free, *(stretch.base_bytes + corner for corner in menu.corner_places)]
    return min((aim, *(at for at in further if aim < at <= stretch.high)), key=seconds_at)
