"""A second opinion on a schedule: its metrics from its steps and addresses alone.

Shares nothing with the planner or with `coop_jax.planning.metrics`: it keeps its own map
of the pool, finds out itself which allocations had no hole to go to, and takes only the
number of evictions and the nanoseconds of each search from the schedule.
"""

from __future__ import annotations

import bisect
import dataclasses

COMPUTE, RECOMPUTE, EVICT, FREE = range(4)


@dataclasses.dataclass
class Replayed:
    compute_overhead: float = 0.0
    forced_evictions: int = 0
    eager_evictions: int = 0
    recomputations: int = 0
    searches: int = 0
    search_seconds: float = 0.0
    fragmentation: float = 0.0
    fragmentation_block_used: float = 0.0
    peak_bytes: int = 0
    max_live_bytes: int = 0


class Pool:
    """Blocks by address."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.used = self.highest_end = 0

    def add(self, offset: int, size: int) -> None:
        at = bisect.bisect_left(self.starts, offset)
        assert offset >= 0
        if at > 0:
            before = self.starts[at - 1]
            assert before + self.sizes[before] <= offset
        assert at == len(self.starts) or offset + size <= self.starts[at]
        self.starts.insert(at, offset)
        self.sizes[offset] = size
        self.used += size
        self.highest_end = max(self.highest_end, offset + size)
        assert self.highest_end <= self.capacity

    def remove(self, offset: int) -> None:
        del self.starts[bisect.bisect_left(self.starts, offset)]
        self.used -= self.sizes.pop(offset)

    def has_hole(self, size: int) -> bool:
        end = 0
        for start in self.starts:
            if start - end >= size:
                return True
            end = start + self.sizes[start]
        return self.capacity - end >= size


def replay(graph, schedule) -> Replayed:
    alignment = schedule.alignment
    pool = Pool(schedule.capacity)
    size = [-(-n // alignment) * alignment for n in graph.tensor_bytes.tolist()]
    scratch = [-(-n // alignment) * alignment for n in graph.op_workspace_bytes.tolist()]
    seconds, evictable = graph.op_seconds.tolist(), graph.evictable.tolist()
    placed: dict[int, list[tuple[int, int, int]]] = {}
    for step, *placement in schedule.placements.tolist():
        placed.setdefault(step, []).append(tuple(placement))
    workspace_at = dict(schedule.workspaces.tolist())
    events = iter(schedule.events.tolist())
    where: dict[int, int] = {}
    result = Replayed()
    total, again = 0.0, 0.0
    shares, shares_used = [], []

    def put(t: int, offset: int) -> None:
        if size[t]:
            pool.add(offset, size[t])
            where[t] = offset

    def drop(t: int) -> None:
        if t in where:
            pool.remove(where.pop(t))

    def allocate(needed: int, victims: list[int], taken_over: int | None) -> None:
        """Before a new block: were evictions due, and what do they leave free?"""
        if pool.has_hole(needed):
            assert taken_over is None
            return
        requested, evictions, free, nanoseconds = next(events)
        assert requested == needed
        for _ in range(evictions - (taken_over is not None)):
            drop(victims.pop(0))
        if taken_over is None:
            assert pool.has_hole(needed)
        else:
            drop(taken_over)
        own = pool.capacity - pool.used
        assert own == free
        shares.append(own / pool.capacity)
        shares_used.append((own - needed) / pool.capacity)
        result.searches += 1
        result.search_seconds += nanoseconds * 1e-9

    for t, offset in schedule.initial_placements.tolist():
        put(t, offset)
    result.max_live_bytes = pool.used
    steps = schedule.steps.tolist()
    last = -1
    for step, (kind, index) in enumerate(steps):
        if kind == EVICT:
            result.forced_evictions += 1
            continue
        outputs = placed.get(step, [])
        if kind == FREE:
            result.eager_evictions += evictable[index]
            # Taken over by the next operation: its block stays in use.
            coming = next(s for s in range(step, len(steps) + 1) if _runs(steps, s))
            if all(index != old for _, _, old in placed.get(coming, [])):
                drop(index)
            continue
        handed = {old for _, _, old in outputs}
        since = steps[last + 1 : step]
        victims = [t for k, t in since if k == EVICT and t not in handed]
        consumed = {t for k, t in since if k == EVICT and t in handed}
        for t, offset, old in outputs:  # dead inputs first
            if old >= 0 and old not in consumed:
                assert where[old] == offset
                drop(old)
                put(t, offset)
        for t, offset, old in outputs:
            if not size[t] or t in where:
                continue
            allocate(size[t], victims, old if old in consumed else None)
            put(t, offset)
        if step in workspace_at:
            allocate(scratch[index], victims, None)
            pool.add(workspace_at[step], scratch[index])
        result.max_live_bytes = max(result.max_live_bytes, pool.used)
        if step in workspace_at:
            pool.remove(workspace_at[step])
        assert not victims
        last = step
        if kind == COMPUTE:
            total += seconds[index]
        else:
            again += seconds[index]
            result.recomputations += 1
    assert next(events, None) is None
    result.compute_overhead = (total + again) / total if total else 1.0
    if shares:
        result.fragmentation = sum(shares) / len(shares)
        result.fragmentation_block_used = sum(shares_used) / len(shares)
    result.peak_bytes = pool.highest_end
    return result


def _runs(steps: list[list[int]], step: int) -> bool:
    return step == len(steps) or steps[step][0] in (COMPUTE, RECOMPUTE)
