"""Worthwhile bytes: the pool beyond which memory takes more time than it saves.

More bytes never cost recomputation, so a plan is made for all of the room. Where memory
itself takes time (on a CPU pages that the operating system zeroes in every run), a smaller
pool can be faster. Plans with little effort for a ladder of pools tell how much has to be
recomputed in each; the pool with the least sum is the same for all budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from coop_jax.base.options import PlanOptions
from coop_jax.base.threads import at_once
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import plan_pool, unconstrained
from coop_jax.search.candidates import GAIN_WORTH_TRYING

# A rung of the ladder has this part of the bytes of the one above it.
_RUNG = 0.87
_NUM_RUNGS = 12
# Operations that may be simulated for a plan: a fiftieth of what plans are made with. The
# pools differ by more than what the rest of the effort saves in one of them.
_SEARCH_EFFORT = 200_000
# XLA needs up to so much more than planned: a pool that aims below a limit leaves it free,
# as another compilation takes longer than that gains.
_MARGIN = 1 / 10


def worthwhile_bytes(
    graph: StepGraph,
    options: PlanOptions,
    seconds_for: Callable[[int], float],
    limits: tuple[int, ...] = (),
) -> int | None:
    """The bytes of a pool beyond which more cost more time than they save.

    Arguments:
        graph: the step's graph.
        options: of the planner.
        seconds_for: seconds that a run takes to have so many bytes.
        limits: bytes beyond which `seconds_for` rises at once.

    Returns:
        None where all of the memory takes too little time to matter.
    """
    whole = unconstrained(graph, options).statistics
    least_gain = GAIN_WORTH_TRYING * whole.compute_seconds
    if seconds_for(whole.max_live_bytes) <= least_gain:
        return None
    quick = options.with_fields(search_effort=_SEARCH_EFFORT, seconds=None)

    def seconds_in(pool: int) -> float:
        schedule = plan_pool(graph, whole.max_live_bytes, quick, pool)
        if schedule is None:
            return math.inf
        statistics = schedule.statistics
        return statistics.recompute_seconds + seconds_for(statistics.max_live_bytes)

    pools = sorted(_pools(whole.max_live_bytes, limits), reverse=True)
    seconds = at_once(seconds_in, pools)
    best = min(range(len(pools)), key=lambda number: (seconds[number], number))
    return pools[best] if seconds[best] + least_gain < seconds[0] else None


def _pools(most: int, limits: tuple[int, ...]) -> Iterator[int]:
    """A ladder of pools, and those that aim below limits; none that misses one narrowly."""
    aims = [(limit - int(limit * _MARGIN), limit) for limit in limits if 0 < limit < most]
    for number in range(_NUM_RUNGS):
        pool = int(most * _RUNG**number)
        if not any(aim < pool <= limit for aim, limit in aims):
            yield pool
    yield from (aim for aim, _ in aims)
