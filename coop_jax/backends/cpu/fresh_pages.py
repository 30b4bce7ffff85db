"""Fresh pages: what it takes to get memory from the operating system in every run.

XLA:CPU allocates the temporaries of an executable in one block for every run, with the C
library's allocator. glibc maps a block of 32 MiB or more anew each time and gives it back
at the end, whatever was freed before (`M_MMAP_THRESHOLD`, mallopt(3)): the system zeroes
each of its pages as it is first written. Most smaller blocks are used again. So a step with
fewer temporaries can be faster than one that recomputes less.
"""

from __future__ import annotations

# The most that glibc's threshold for mapped blocks grows to on 64-bit systems.
_LEAST_MAPPED_BYTES = 32 << 20
# Two cores of a server, Linux, pages of 4 KiB, by `examples/fresh_pages.py`: between a run
# with such a block, and what it takes beyond one with a block that is used again.
_BYTES_PER_SECOND = 4e9


def seconds_for(temporary_bytes: int) -> float:
    """Seconds that a run takes to have so many bytes of temporaries."""
    if temporary_bytes < _LEAST_MAPPED_BYTES:
        return 0.0
    return temporary_bytes / _BYTES_PER_SECOND


def most_for_nothing() -> int:
    """The most bytes that take no time."""
    return _LEAST_MAPPED_BYTES - 1
