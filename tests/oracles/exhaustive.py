"""The least recomputation under a budget of live bytes, by exhaustive search.

Dijkstra over (operations computed, resident tensors); for graphs of about eight
operations. Any order of recomputation, unlike `rematerialization_ilp`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from oracles.live_bytes import Arrays

_Set = frozenset[int]


def least_recomputation(
    arrays: Mapping[str, Any], budget: int, *, alignment: int = 64
) -> float | None:
    """Seconds of recomputation, None if there is no schedule."""
    a = Arrays.of(arrays, alignment)
    inputs = frozenset(
        t for t in range(a.num_tensors) if a.producer[t] < 0 and a.in_pool(t)
    )
    if sum(a.bytes[t] for t in inputs) + a.pinned_bytes(-1, False) > budget:
        return None
    wanted = frozenset(t for t in a.output if a.in_pool(t))
    counter = itertools.count()
    queue = [(0.0, next(counter), 0, inputs)]
    done: set[tuple[int, _Set]] = set()
    while queue:
        seconds, _, computed, resident = heapq.heappop(queue)
        if (computed, resident) in done:
            continue
        done.add((computed, resident))
        if computed == a.num_ops and wanted <= resident:
            if (
                sum(a.bytes[t] for t in resident) + a.pinned_bytes(computed, False)
                <= budget
            ):
                return seconds
        for t in resident:
            heapq.heappush(queue, (seconds, next(counter), computed, resident - {t}))
        for op in range(min(computed + 1, a.num_ops)):
            is_first = op == computed
            if not is_first and not a.recomputable[op]:
                continue
            for after in _runs(a, op, computed, resident, budget):
                cost = seconds + (0 if is_first else a.seconds[op])
                entry = (cost, next(counter), computed + is_first, after)
                heapq.heappush(queue, entry)
    return None


def _runs(a: Arrays, op: int, computed: int, resident: _Set, budget: int) -> Iterator[_Set]:
    """Tensors that may be resident after a run, a set for every choice of take-overs."""
    for t in a.inputs[op]:
        if (a.in_pool(t) and t not in resident) or a.overwritten_at[t] < computed:
            return
    is_first = op == computed
    made = {t for t in a.outputs[op] if a.in_pool(t) and t not in resident}
    targets = made | ({t for t in a.outputs[op] if a.is_pinned[t]} if is_first else set())
    used = sum(a.bytes[t] for t in resident | made) + a.workspace[op]
    used += a.pinned_bytes(computed, is_first)
    pairs = [(i, o) for i, o in a.in_place[op] if i in resident and o in targets]
    for k in range(len(pairs) + 1):
        for chosen in itertools.combinations(pairs, k):
            sources = {i for i, _ in chosen}
            if len(sources) < k or len({o for _, o in chosen}) < k:
                continue
            if used - sum(a.bytes[i] for i in sources) <= budget:
                yield (resident - sources) | made
