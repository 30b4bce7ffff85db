"""Replayed order: an executable's live bytes if more fences kept it to its plan's order.

The instructions of a compiled plan are sorted anew: those of the executions before a fence
come before the others, and keep XLA's order otherwise. What XLA stores is known of the
executable. The plan's values live from their first use in the new order to the last. What
else is stored does not pass a fence, so it is made again behind it, or only there: a second
copy of a value in the layout of a later reader, or a value that two readers share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from coop_jax.base.sweep import bytes_over_time
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import Execution
from coop_jax.xla.buffers_from_schedule import Flow, kinds_of_storage
from coop_jax.xla.hlo_module import HloModule
from coop_jax.xla.shapes import Index


class ReplayedOrder:
    """The instructions of a compiled plan, in the order that more fences would leave.

    Arguments:
        graph: the graph that the plan was made on.
        executions: the plan's executions.
        module: the scheduled module of the plan's executable.
        numbers: the execution of every instruction, -1 where there is none.
        places: addresses as of `xla.liveness.live_bytes`.
    """

    def __init__(
        self,
        graph: StepGraph,
        executions: Sequence[Execution],
        module: HloModule,
        numbers: Sequence[int],
        places: Mapping[tuple[int, Index], Any],
    ) -> None:
        flow = Flow(module, module.entry, places)
        self._latest = _latest(flow, module, numbers, len(executions))
        storages = _storages(flow, module)
        is_value = _hold_values(graph, executions, numbers, storages)
        touches = [sorted(touched) for touched, _, _ in storages]
        self._bytes = np.array([size for _, size, _ in storages], np.int64)
        self._owner = np.repeat(np.arange(len(touches)), [len(t) for t in touches])
        self._touch = np.array([at for t in touches for at in t], np.int64)
        self._passes = np.array(is_value, bool)[self._owner]
        firsts = np.array([t[0] for t in touches], np.int64)
        self._is_made = self._touch == firsts[self._owner]
        self._is_alone = np.bincount(self._owner, minlength=len(touches))[self._owner] == 1

    def most_bytes(self, fences: Collection[int]) -> int:
        """The most bytes alive at once with fences before these executions."""
        if not len(self._touch):
            return 0
        group = np.searchsorted(np.array(sorted(fences), np.int64), self._latest, "right")
        position = np.empty_like(group)
        position[np.argsort(group, kind="stable")] = np.arange(len(group))
        part = np.where(self._passes, 0, group[self._touch])
        key = self._owner * (len(fences) + 1) + part
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        at = position[self._touch][order]
        first, last = np.minimum.reduceat(at, starts), np.maximum.reduceat(at, starts)
        # Made before a fence, and read behind it alone: it is made there.
        is_only_made = np.diff(starts, append=len(order)) == 1
        is_only_made &= (self._is_made & ~self._is_alone)[order][starts]
        size = np.where(is_only_made, 0, self._bytes[self._owner[order][starts]])
        return int(bytes_over_time(first, last, size, len(group)).max())

    def without_needless(self, fences: Collection[int], limit: int) -> frozenset[int]:
        """Fences of these with which at most `limit` bytes are alive, as with all of them;
        without one more it would be more."""
        kept = set(fences)
        todo = [sorted(kept)]
        while todo:
            some = todo.pop()
            if self.most_bytes(kept.difference(some)) <= limit:
                kept.difference_update(some)
            elif len(some) > 1:
                todo += [some[len(some) // 2 :], some[: len(some) // 2]]
        return frozenset(kept)


def _latest(
    flow: Flow, module: HloModule, numbers: Sequence[int], count: int
) -> np.ndarray:
    """For every instruction, its execution or the first that reads its results, if that is
    earlier: behind a fence before that one it cannot be."""
    at = {number: position for position, number in enumerate(flow.sequence)}
    latest = [number if number >= 0 else count for number in numbers]
    for position in range(len(latest) - 1, -1, -1):
        for operand in module.instructions[flow.sequence[position]].operands:
            if operand in at:
                before = at[operand]
                latest[before] = min(latest[before], latest[position])
    return np.array(latest, np.int64)


# Positions of the instructions that make or read it, bytes, positions that make it.
_Storage = tuple[set[int], int, set[int]]


def _storages(flow: Flow, module: HloModule) -> list[_Storage]:
    """The storages of temporaries."""
    kinds = kinds_of_storage(module, flow)
    touched: dict[int, set[int]] = defaultdict(set)
    for position, number in enumerate(flow.sequence):
        for operand in module.instructions[number].operands:
            for value in flow.held[operand].values():
                touched[id(value.root())].add(position)
    at = {number: position for position, number in enumerate(flow.sequence)}
    found: dict[int, _Storage] = {}
    for value in flow.values:
        storage = value.root()
        if id(storage) in kinds or not storage.bytes:
            continue
        start: _Storage = touched[id(storage)], storage.bytes, set()
        touches, _, made = found.setdefault(id(storage), start)
        touches.add(at[value.instruction])
        made.add(at[value.instruction])
    return list(found.values())


def _hold_values(
    graph: StepGraph,
    executions: Sequence[Execution],
    numbers: Sequence[int],
    storages: Sequence[_Storage],
) -> list[bool]:
    """Whether each storage holds a value of the plan, which passes fences.

    Of the storages that one execution makes, as many of a size as it makes values of it,
    those with the longest lives. One that several executions write is their values'.
    """
    values = Counter(
        (number, graph.in_pool_bytes[tensor])
        for number, execution in enumerate(executions)
        for tensor in execution.makes
    )
    found = [True] * len(storages)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, (_, size, made) in enumerate(storages):
        makers = {numbers[position] for position in made}
        if len(makers) == 1 and min(makers) >= 0:
            alike[min(makers), size].append(index)
    for key, indices in alike.items():
        indices.sort(key=lambda i: min(storages[i][0]) - max(storages[i][0]))
        for index in indices[values[key] :]:
            found[index] = False
    return found
