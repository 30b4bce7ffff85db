"""Closing in: from a plan that keeps a budget with room to spare towards the budget.

Near the planner's bound XLA needs far more than a plan predicts: plans for all of the room
miss, and the tightest one, which fits, leaves much of it unused. What compiled steps need
grows with the bytes that their plans keep alive. So it is taken as a line from a plan that
fits to one that misses, and the next plan is made for the pool where the line meets the
budget.

The search ends: every plan is made for a pool between those of two others, and becomes one
of the two, so that they approach; at most `_MOST_PLANS` are made, and at most `num_left`
compiled. What a plan would gain is known before it is compiled: one that gains too little
is not, and only raises the lower end. It gains at most as much as plans that were made for
more bytes: where that is too little, none is made.
"""

from __future__ import annotations

import dataclasses

from coop_jax.plan.live_ranges import lifetimes
from coop_jax.search.candidates import (
    GAIN_WORTH_TRYING,
    LEAST_STEP,
    Measured,
    best_of,
    may_gain,
)
from coop_jax.search.order_feedback import same_fences
from coop_jax.search.other_orders import in_order
from coop_jax.search.problem import Problem

# Plans that are made at most; some are the same, some are not compiled.
_MOST_PLANS = 6
# The next pool is at least this part of the way between the two ends away from each.
_LEAST_PART = 1 / 8


@dataclasses.dataclass(frozen=True)
class _End:
    """One end of the line: a pool, and the bytes that XLA needs for its plan."""

    pool_bytes: int
    xla_bytes: int


def closed_in(
    problem: Problem, found: Measured, budget_bytes: int, num_left: int
) -> Measured:
    """The plan that recomputes least of those compiled and those between `found` and the
    budget.

    Arguments:
        problem: the problem, with the plans compiled so far.
        found: the one of them that keeps the budget with the least recomputation.
        budget_bytes: the budget.
        num_left: the number of plans that may be compiled.
    """
    room = budget_bytes - problem.fixed_bytes
    last = len(problem.measured) + num_left
    low = _End(_live_bytes(problem, found), found.total_bytes)
    high = _nearest_miss(problem, low, budget_bytes)
    for _ in range(_MOST_PLANS):
        if high.pool_bytes - low.pool_bytes <= room // LEAST_STEP:
            break
        if not may_gain(found, problem.least_recomputed(high.pool_bytes)):
            break
        pool = _aim(low, high, budget_bytes)
        planned = problem.plan(problem.graphs, room, pool, spares_partial_results=False)
        if planned is None:
            break
        statistics = planned[1].statistics
        gain = found.recompute_seconds - statistics.recompute_seconds
        if gain <= GAIN_WORTH_TRYING * statistics.compute_seconds:
            low = _End(pool, low.xla_bytes)
            continue
        if len(problem.measured) >= last and not problem.is_compiled(*planned):
            break
        fences = same_fences(*planned, [one.candidate for one in problem.measured])
        measured = problem.compile_plan(
            *planned, ordered_before=fences, is_for_memory=found.candidate.is_for_memory
        )
        if not measured.keeps(budget_bytes):
            measured = in_order(problem, measured)
        if measured.keeps(budget_bytes):
            found, low = measured, _End(pool, measured.total_bytes)
        else:
            # With a larger pool than it needs the plan would be the same.
            needed = max(low.pool_bytes, statistics.max_live_bytes)
            high = _End(min(pool, needed), measured.total_bytes)
    best = best_of(problem.measured, budget_bytes)
    assert best is not None, "one was found"
    return best


def _nearest_miss(problem: Problem, low: _End, budget_bytes: int) -> _End:
    """The smallest plan that missed, of those that keep more alive than the lower end;
    without any, the room, as if it were planned to the byte."""
    room = budget_bytes - problem.fixed_bytes
    missed = [
        _End(_live_bytes(problem, one), one.total_bytes)
        for one in problem.measured
        if one.compiled is not None and not one.keeps(budget_bytes)
    ]
    above = [end for end in missed if low.pool_bytes < end.pool_bytes <= room]
    nearest = _End(room, max(budget_bytes, low.xla_bytes))
    return min(above, key=lambda end: end.pool_bytes, default=nearest)


def _aim(low: _End, high: _End, budget_bytes: int) -> int:
    """The pool where the line meets the budget, at some distance from both ends."""
    rise = max(1, high.xla_bytes - low.xla_bytes)
    part = (budget_bytes - low.xla_bytes) / rise
    part = min(max(part, _LEAST_PART), 1 - _LEAST_PART)
    return low.pool_bytes + int((high.pool_bytes - low.pool_bytes) * part)


def _live_bytes(problem: Problem, measured: Measured) -> int:
    """The most bytes that a plan keeps alive, without scratch that was learnt."""
    graph, schedule = measured.candidate.graph, measured.candidate.schedule
    order = [operation.anchor for operation in graph.operations]
    for plain in problem.graphs:
        if [operation.anchor for operation in plain.operations] == order:
            live = lifetimes(plain, schedule).live_bytes(plain.in_pool_bytes)
            return int(live.max(initial=0))
    return schedule.statistics.max_live_bytes
