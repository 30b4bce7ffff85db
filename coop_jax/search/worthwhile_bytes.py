"""Worthwhile bytes: the pool beyond which memory takes more time than it saves.

More bytes never cost recomputation, so a plan is made for all of the room. Where memory
itself takes time (on a CPU pages that the operating system zeroes in every run), a smaller
pool can be faster. Plans with little effort for a ladder of pools tell how much has to be
recomputed in each; the pool with the least sum is the same for all budgets.
"""

from __future__ import annotations

import functools
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
MARGIN = 1 / 10


class Worthwhile:
    """The pool of a step's plans that is worth the time that it takes.

    Arguments:
        graph, options: as of `worthwhile_bytes`.
        seconds_for: seconds that a run takes to have the temporaries of a pool.
        free_bytes: the most bytes that take none; None where no bytes take any.
    """

    def __init__(
        self,
        graph: StepGraph,
        options: PlanOptions,
        seconds_for: Callable[[int], float],
        free_bytes: int | None,
    ) -> None:
        self._graph, self._options = graph, options
        self.seconds_for, self.free_bytes = seconds_for, free_bytes

    @functools.cached_property
    def pool_bytes(self) -> float:
        """The bytes of the pool; infinite where no bytes take more time than they save."""
        if self.free_bytes is None:
            return math.inf
        return self._best(self.seconds_for, self.free_bytes)

    def give_up_free(self) -> None:
        """The best of larger pools from now on: XLA needs more for plans that are made for
        the one that takes no time, and for less too much is recomputed."""
        assert self.free_bytes is not None, "a plan was made for it"
        least = self.free_bytes + 1
        self.pool_bytes = self._best(lambda pool: self.seconds_for(max(pool, least)))

    def _best(self, seconds_for: Callable[[int], float], limit: int | None = None) -> float:
        found = worthwhile_bytes(self._graph, self._options, seconds_for, limit)
        return math.inf if found is None else found


def worthwhile_bytes(
    graph: StepGraph,
    options: PlanOptions,
    seconds_for: Callable[[int], float],
    limit: int | None = None,
) -> int | None:
    """The bytes of a pool beyond which more cost more time than they save.

    Arguments:
        graph: the step's graph.
        options: of the planner.
        seconds_for: seconds that a run takes to have so many bytes.
        limit: bytes beyond which `seconds_for` rises at once, if there are any.

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

    pools = sorted(_pools(whole.max_live_bytes, limit), reverse=True)
    seconds = at_once(seconds_in, pools)
    best = min(range(len(pools)), key=lambda number: (seconds[number], number))
    return pools[best] if seconds[best] + least_gain < seconds[0] else None


def _pools(most: int, limit: int | None) -> Iterator[int]:
    """A ladder of pools, and one that aims below the limit; none narrowly below it."""
    if limit is None or not 0 < limit < most:
        aim = limit = 0
    else:
        aim = limit - int(limit * MARGIN)
        yield aim
    for number in range(_NUM_RUNGS):
        pool = int(most * _RUNG**number)
        if not aim < pool <= limit:
            yield pool
