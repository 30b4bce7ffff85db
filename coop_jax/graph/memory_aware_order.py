"""Memory-aware order: operations as soon as they free their operands.

A compiler that has memory to spare leaves weight gradients and updates to the end of the
step, and their operands wait for them: XLA:GPU orders the step of a language model so,
and then no recomputed value of a layer can be freed before all of them are done. Here an
operation runs as soon as it can if that does not increase the live bytes, or if another
that waits for nothing else then frees more. The planner takes the order in which it
recomputes less.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence


def early_order(
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    tensor_bytes: Sequence[int],
    before: Iterable[tuple[int, int]],
    negligible_bytes: int = 0,
    kernel: Sequence[int] = (),
) -> list[int]:
    """Indices of the operations, in an order in which their operands are freed early.

    Arguments:
        inputs, outputs: tensors of every operation, in an order that can be run.
        tensor_bytes: bytes of every tensor while it is alive.
        before: further pairs of operations of which the first must run first.
        negligible_bytes: an increase of the live bytes of at most this counts as none.
        kernel: a number for every operation: neighbours of one number, which the compiler
            computes together, stay together. -1 or left out: alone.
    """
    groups = _groups(kernel or [-1] * len(inputs))
    order = _early_order(
        [_read_by(group, inputs, outputs) for group in groups],
        [[t for k in group for t in outputs[k]] for group in groups],
        tensor_bytes,
        _between(groups, before),
        negligible_bytes,
    )
    return [k for g in order for k in groups[g]]


def _groups(kernel: Sequence[int]) -> list[list[int]]:
    """The operations in their order, neighbours of one kernel in one group."""
    groups: list[list[int]] = []
    for k, number in enumerate(kernel):
        if groups and number >= 0 and kernel[groups[-1][0]] == number:
            groups[-1].append(k)
        else:
            groups.append([k])
    return groups


def _read_by(
    group: Sequence[int],
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
) -> list[int]:
    """The tensors that a group reads and does not make."""
    made = {t for k in group for t in outputs[k]}
    return [t for k in group for t in inputs[k] if t not in made]


def _between(
    groups: Sequence[Sequence[int]], before: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Pairs of groups of which the first must run first, from pairs of operations."""
    group_of = {k: g for g, group in enumerate(groups) for k in group}
    pairs = ((group_of[first], group_of[second]) for first, second in before)
    return [(first, second) for first, second in pairs if first != second]


def _early_order(
    inputs: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    tensor_bytes: Sequence[int],
    before: Iterable[tuple[int, int]],
    negligible_bytes: int,
) -> list[int]:
    """`early_order` of operations that are each alone."""
    count = len(inputs)
    made_by = {t: k for k, made in enumerate(outputs) for t in made}
    needs = [{made_by[t] for t in read if t in made_by} for read in inputs]
    for first, second in before:
        needs[second].add(first)
    needed_by: list[list[int]] = [[] for _ in range(count)]
    for k, earlier in enumerate(needs):
        for j in earlier:
            needed_by[j].append(k)
    waiting = [len(earlier) for earlier in needs]
    readers: dict[int, set[int]] = {}
    for k, read in enumerate(inputs):
        for t in read:
            readers.setdefault(t, set()).add(k)

    def growth(k: int) -> float:
        """Bytes made, less those freed; a tensor with n readers counts as 1/n freed."""
        freed = sum(tensor_bytes[t] / len(readers[t]) for t in set(inputs[k]))
        return sum(tensor_bytes[t] for t in outputs[k]) - freed

    done = [False] * count
    shrinking: list[tuple[float, int]] = []

    def consider(k: int) -> None:
        """Queue an operation that is ready if it does not increase the live bytes."""
        enabled = (growth(j) for j in needed_by[k] if waiting[j] == 1)
        grown = growth(k) + min(0, min(enabled, default=0))
        if grown <= negligible_bytes:
            heapq.heappush(shrinking, (grown, k))

    def consider_last(k: int) -> None:
        """Consider the operation that `k` still waits for, if that one is ready."""
        last = next(j for j in needs[k] if not done[j])
        if waiting[last] == 0:
            consider(last)

    order: list[int] = []

    def run(k: int) -> None:
        done[k] = True
        order.append(k)
        for t in set(inputs[k]):
            readers[t].discard(k)
            for j in readers[t]:  # The last reader frees it.
                if waiting[j] == 0:
                    consider(j)
        for j in needed_by[k]:
            waiting[j] -= 1
            if waiting[j] == 0:
                consider(j)
            elif waiting[j] == 1:
                consider_last(j)

    for k in range(count):
        if waiting[k] == 0:
            consider(k)
    for k in range(count):
        while shrinking:
            _, j = heapq.heappop(shrinking)
            if not done[j]:
                run(j)
        if not done[k]:
            run(k)
    while shrinking:
        _, j = heapq.heappop(shrinking)
        if not done[j]:
            run(j)
    return order
