"""Layer turns: whether the way back has come to a layer.

A layer runs again when something on the way back first reads a value of it. But one of its
values may be read long before: what the first layer makes of a diffusion model's time is
read on the way back of the head. If the whole layer ran then, its values would wait for the
way back of all other layers. Such a value is made again alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


class LayerTurns:
    """The order in which the way back comes to layers.

    Arguments:
        first_reads: by layer, in order, where values of it are read first on the way back.
    """

    def __init__(self, first_reads: Mapping[int, Sequence[int]]) -> None:
        # Most of what a layer makes is read on its own way back.
        self._middle = {
            layer: statistics.median_low(found) for layer, found in first_reads.items()
        }

    def has_come(self, layer: int, reader: int) -> bool:
        """Whether no other layer's way back lies between a reader and that of this one."""
        middle = self._middle.get(layer, reader)
        return not any(reader <= other < middle for other in self._middle.values())
