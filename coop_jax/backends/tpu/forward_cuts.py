"""Forward cuts: where the forward pass of a step is divided into layers.

Where little passes from what runs before to what runs after, and so that all layers make
about as much that waits for the way back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coop_jax.base.sweep import bytes_over_time
from coop_jax.graph.step_graph import StepGraph

# A layer makes at least this part, and at most this multiple, of what it would if all made
# the same.
_LEAST = 0.75
_MOST = 1.25
# Of the idle bytes: what is so small is kept. Means and variances of a normalization take
# nothing, and to make them again means to read all they are of.
_NEGLIGIBLE = 1e-4
# The bytes that pass are as few as the fewest in reach up to this multiple of them.
_AS_LITTLE = 1.02


class Forward:
    """The operations up to the turn, where an unmodified step has most alive.

    Attributes:
        idle_bytes: of what is made before the turn and read after it.
    """

    def __init__(self, graph: StepGraph) -> None:
        core = graph.core
        made, last, size = core.producer, core.last_use, np.array(graph.in_pool_bytes)
        count = len(graph.operations)
        is_made = made >= 0
        # After each operation, of what a later one reads.
        alive = bytes_over_time(made[is_made], last[is_made] - 1, size[is_made], count)
        self._turn = int(alive.argmax())
        self._last_forward = made.copy()
        for number, operation in enumerate(graph.operations[: self._turn + 1]):
            self._last_forward[list(operation.inputs)] = number
        is_forward = is_made & (made <= self._turn)
        crosses = is_forward & (last > self._turn)
        idle_made = np.zeros(count, np.int64)
        np.add.at(idle_made, made[crosses], size[crosses])
        self._idle_made = np.cumsum(idle_made)
        self._carried = bytes_over_time(
            made[is_forward], self._last_forward[is_forward] - 1, size[is_forward], count
        )
        self._made = made
        can_run_again = np.array(core.arrays()["op_recomputable"], bool)
        # Also what is not read on the way back itself: what is made again may read it.
        self._may_drop = is_forward & (last < count) & ~core.tensor_pinned
        self._may_drop &= size > _NEGLIGIBLE * self._idle_made[-1]
        self._may_drop &= can_run_again[np.maximum(made, 0)]
        self.idle_bytes = int(self._idle_made[-1])

    def boundaries(self, layer_bytes: float) -> tuple[int, ...]:
        """The operations that layers of about so many idle bytes end with."""
        found: list[int] = []
        start = 0
        while True:
            ends = [start + part * layer_bytes for part in (_LEAST, _MOST)]
            first, last = np.searchsorted(self._idle_made[: self._turn], ends)
            if first == self._turn:
                return tuple(found)
            window = slice(first, max(last, first + 1))
            carried = self._carried[window]
            narrow = first + np.flatnonzero(carried <= _AS_LITTLE * carried.min())
            off = np.abs(self._idle_made[narrow] - start - layer_bytes)
            boundary = int(narrow[off.argmin()])
            start = int(self._idle_made[boundary])
            if self.idle_bytes - start < _LEAST * layer_bytes:
                return tuple(found)
            found.append(boundary)

    def dropped(self, boundaries: Sequence[int]) -> dict[int, list[int]]:
        """The tensors to make again, by the operation that they are dropped after."""
        dropped: dict[int, list[int]] = {}
        for tensor in np.flatnonzero(self._may_drop).tolist():
            made, last = int(self._made[tensor]), int(self._last_forward[tensor])
            if not any(made <= boundary < last for boundary in boundaries):
                dropped.setdefault(last, []).append(tensor)
        return dropped
