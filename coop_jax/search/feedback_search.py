"""Feedback search: one plan at a time, each corrected by the compilation of the last one.

A first plan for a budget leaves a little of it free. The executable of a plan that misses
is read: the bytes that XLA keeps alive beyond the plan become scratch of the next plan's
operations (`search.live_bytes_feedback`). That explains most of a miss, not all of it, and
scratch learnt from one plan may not hold for another: so a second miss counts in full, and
where no plan fits with all learnt scratch, the graph is planned as it was read at first,
with the plan's error left free.
"""

from __future__ import annotations

from coop_jax.base.threads import at_once
from coop_jax.plan.planner import Planned, key_of, plan_pool
from coop_jax.search.candidates import (
    LEAST_STEP,
    MAX_COMPILATIONS,
    MAX_TIGHTEST,
    SLACK_WORTH_USING,
    Enough,
    Measured,
    best_of,
    least,
    may_gain,
    never,
)
from coop_jax.search.live_bytes_feedback import scratch_needed
from coop_jax.search.problem import Problem

# A first plan leaves this part of the room free: most compiled steps need up to about a
# hundredth more or less than planned, and a second compilation takes minutes where the
# last hundredth of the room saves little time.
_MARGIN = 1 / 128
# On host devices XLA packs what it gathers between the values, and needs more than planned
# by up to one over this number of the room.
_LEFT_ON_MESHES = 20
# After a miss, so many times `SLACK_WORTH_USING` has to be unused for one more compilation:
# a plan that uses more has failed by then.
_AFTER_A_MISS = 3
# For the tightest plans: the parts of the smallest pool that can be planned, which a plan
# may use where no single operation needs more.
_FLOOR_PREFERENCES = (0.95, 0.9, 0.85, 0.8, 0.7)
# Plans that are expected not to fit are made again instead of compiled, at most so often
# between two compilations.
_MOST_SKIPPED = 4
# The error of the next plan may exceed that of the last one by one over this number of it.
_MARGIN_OF_ERROR = 4
# Where the next plan is one that was compiled, the room shrinks by one over this number.
_STEP_AFTER_THE_SAME = 50
# After a plan that keeps the budget the next one may use one over this number of the room
# that is free: one plan's error says little about that of the next.
_PART_USED_NEXT = 2


class FeedbackSearch:
    """A search that plans, compiles, learns scratch and plans again."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.forget()

    def best(
        self,
        budget_bytes: int,
        num_left: int = MAX_COMPILATIONS,
        *,
        compiles_unlikely: bool = True,
        is_enough: Enough = never,
    ) -> Measured | None:
        """The plan that recomputes least of those found to keep a budget.

        The pool shrinks until XLA's figure fits; then one more plan tries to use the room
        that is left.

        Arguments:
            budget_bytes: the budget.
            num_left: the number of plans that may be compiled.
            compiles_unlikely: whether plans are compiled, too, that are expected to miss
                the budget by far, where there are no others.
            is_enough: whether a compiled plan is the last one.

        Returns:
            None if none of the compiled plans keeps the budget.
        """
        self.forget()
        descent = _Descent(self, self._problem, budget_bytes)
        return descent.best(
            num_left, compiles_unlikely=compiles_unlikely, is_enough=is_enough
        )

    def tightest(self, budget_bytes: int, num_left: int = MAX_TIGHTEST) -> Measured:
        """The first of the tightest plans that keeps the budget, or else the smallest.

        The plans are the same for every budget; `num_left` of them may be compiled.
        """
        self.forget()
        tried: dict[bytes, Measured] = {}
        plans: list[Planned] | None = None
        error = 0
        while len(tried) < num_left:
            if plans is None:
                plans = self._tightest_plans()
            plans = [plan for plan in plans if key_of(*plan) not in tried]
            if not plans:
                break
            planned = self._likeliest(plans)
            measured = self._problem.compile_plan(*planned, error)
            tried[key_of(*planned)] = measured
            if least(measured) <= (False, budget_bytes):
                break
            error = measured.total_bytes - self._problem.planned_bytes(*planned)
            if self.learn(planned, measured):
                plans, error = None, 0
        return min(tried.values(), key=least)

    def _likeliest(self, plans: list[Planned]) -> Planned:
        """The first plan, unless another is expected to need clearly less."""
        expected = [self._problem.planned_bytes(*plan) for plan in plans]
        least_bytes = min(expected)
        if expected[0] <= least_bytes + least_bytes // LEAST_STEP:
            return plans[0]
        return plans[expected.index(least_bytes)]

    def _tightest_plans(self) -> list[Planned]:
        """The plans for the smallest pool, and for parts of it where no single operation
        needs more.

        Few operations need all of the smallest pool. XLA packs the values that are alive
        during the others worse than the plan does, and so beyond the pool: with fewer
        bytes for them, the compiled step is smaller up to a point.
        """
        graph, smallest = self._problem.smallest_of(self._graphs)
        pool = smallest.pool_bytes
        made = at_once(
            lambda part: plan_pool(graph, pool, self._problem.options, int(part * pool)),
            _FLOOR_PREFERENCES,
        )
        schedules = [smallest.schedule, *made]
        return [(graph, schedule) for schedule in schedules if schedule is not None]

    def plan(self, room: int, preferred: int | None = None) -> Planned | None:
        """The plan that recomputes least within a room, with the scratch learnt so far."""
        return self._problem.plan(self._graphs, room, preferred)

    def forget(self) -> None:
        """Plan the graphs as they were read at first again."""
        self._graphs, self._scratch = self._problem.graphs, {}

    @property
    def has_learnt(self) -> bool:
        """Whether scratch is added to the graphs."""
        return bool(self._scratch)

    def learn(self, planned: Planned, measured: Measured) -> bool:
        """Add the bytes that XLA kept alive beyond the plan to the graphs, as scratch;
        returns whether there were any."""
        problem = self._problem
        if problem.with_scratch is None or measured.compiled is None:
            return False
        if measured.candidate.realized.arena is not None:
            return False
        compiled = measured.compiled
        if problem.readable is not None:
            program = measured.candidate.realized.program
            compiled = problem.readable(program, compiled)
        needed = scratch_needed(*planned, compiled)
        for index, size in needed.items():
            self._scratch[index] = max(self._scratch.get(index, 0), size)
        if needed:
            self._graphs = problem.with_scratch(self._scratch)
        return bool(needed)


class _Descent:
    """The plans for one budget: with less and less room until one keeps it, and one more
    with some of the room that this leaves free.

    Arguments:
        search: plans, and learns scratch.
        problem: the step.
        budget_bytes: the budget.
    """

    def __init__(self, search: FeedbackSearch, problem: Problem, budget_bytes: int) -> None:
        self._search = search
        self._problem = problem
        self._budget_bytes = budget_bytes
        self._room = budget_bytes - problem.fixed_bytes
        self._preferred = self._most()
        self._uses_all = self._preferred < problem.worthwhile_bytes
        self._error = 0  # The likely error of the next plan, in bytes.
        # Bytes that the next plan has to leave free for its error.
        self._margin = self._room // _LEFT_ON_MESHES if problem.is_gathered_early else 0
        self._worst = 0  # The largest error of a plan, in bytes.
        self._found: Measured | None = None
        self._seen: set[bytes] = set()
        self._start_skipping()

    def _most(self) -> int:
        """The most bytes that a first plan may use: with a margin, and as many as are worth
        the time that they take."""
        with_margin = self._room - int(_MARGIN * self._room)
        return int(min(with_margin, self._problem.worthwhile_bytes))

    def best(
        self, num_left: int, *, compiles_unlikely: bool, is_enough: Enough
    ) -> Measured | None:
        """The plan that recomputes least of at most `num_left` that are compiled."""
        while len(self._seen) < num_left:
            planned = self._next()
            if planned is None or not (compiles_unlikely or self._is_likely(planned)):
                break
            self._seen.add(key_of(*planned))
            measured = self._problem.compile_plan(*planned, self._error)
            if is_enough(measured):
                tried = [measured] if self._found is None else [self._found, measured]
                return best_of(tried, self._budget_bytes)
            over = measured.total_bytes - self._budget_bytes
            if over > 0 or measured.compiled is None:
                if self._found is not None:
                    break
                self._correct(planned, measured, over)
            elif not self._uses_all:
                tried = [measured] if self._found is None else [self._found, measured]
                self._found = best_of(tried, self._budget_bytes)
                if not self._is_aimed_again(measured):
                    break
            elif self._found is not None:
                return best_of([self._found, measured], self._budget_bytes)
            else:
                self._found = measured
                if not self._is_worth_another(measured, -over):
                    break
                self._preferred += -over // _PART_USED_NEXT
                self._error = 0
        return self._found

    def _next(self) -> Planned | None:
        """The next plan that is worth a compilation."""
        while self._preferred > 0:
            planned = self._planned()
            if self._found is None:
                excess = self._excess(planned)
                if (
                    planned is not None
                    and excess > 0
                    and len(self._skipped) < self._may_skip
                ):
                    self._skipped.append(planned)
                    self._preferred -= max(excess, self._room // LEAST_STEP)
                    continue
                if self._search.has_learnt and (planned is None or excess > 0):
                    self._start_without_scratch()
                    continue
                if planned is None:
                    planned = self._last_skipped()
                    if planned is not None and key_of(*planned) in self._seen:
                        return None
            if planned is None or key_of(*planned) not in self._seen:
                return planned
            # Tensors are large: with a little less the plan is the same.
            self._preferred -= self._room // _STEP_AFTER_THE_SAME
        return None

    def _planned(self) -> Planned | None:
        """The plan for the bytes that are preferred now."""
        if self._unchanging is not None and self._skipped:
            return self._unchanging
        planned = self._search.plan(self._room, self._preferred)
        if planned is not None and self._skipped:
            # An operation that needs more than is preferred needs that in any plan.
            is_least = planned[1].statistics.max_live_bytes > self._preferred
            if is_least and key_of(*planned) == key_of(*self._skipped[-1]):
                self._unchanging = planned
        return planned

    def _excess(self, planned: Planned | None) -> int:
        """Bytes by which a plan is expected to miss the budget, its margin included."""
        if planned is None:
            return 0
        return self._problem.planned_bytes(*planned) + self._margin - self._budget_bytes

    def _is_likely(self, planned: Planned) -> bool:
        """Whether a plan is expected to keep the budget, or to miss it by no more than
        plans of several devices do."""
        excess = self._problem.planned_bytes(*planned) - self._budget_bytes
        return excess <= self._room // _LEFT_ON_MESHES

    def _last_skipped(self) -> Planned | None:
        """Where no plan fits: the last one skipped, or else any within the room."""
        planned = self._skipped[-1] if self._skipped else self._search.plan(self._room)
        self._skipped, self._may_skip = [], 0
        return planned

    def _start_skipping(self) -> None:
        self._skipped: list[Planned] = []
        # The plan that stays the same however few bytes are preferred.
        self._unchanging: Planned | None = None
        self._may_skip = _MOST_SKIPPED

    def _start_without_scratch(self) -> None:
        """Plan the graph as it was read at first, with the plan's error left free."""
        self._search.forget()
        # The margin leaves room for all of the error; half of it is likely.
        self._margin = self._worst + self._worst // _MARGIN_OF_ERROR
        self._error = self._worst // 2
        self._preferred = self._room - self._margin
        self._start_skipping()

    def _correct(self, planned: Planned, measured: Measured, over: int) -> None:
        """Learn from a plan that missed the budget by `over` bytes."""
        num_seen = len(self._seen)
        error = measured.total_bytes - self._problem.planned_bytes(*planned)
        self._worst = max(self._worst, error)
        if self._search.learn(planned, measured):
            # The scratch should explain the first miss; it did not the second time.
            is_first = num_seen == 1
            margin, less = (error // _MARGIN_OF_ERROR, 0) if is_first else (error, over)
            self._margin, self._error = max(0, margin), 0
        else:
            less = num_seen * over
            # The error of the next plan may be a little larger than that of this one.
            margin = error + error * num_seen // _MARGIN_OF_ERROR
            self._margin, self._error = max(self._margin, margin), error
        self._preferred -= max(less, self._room // LEAST_STEP)
        self._start_skipping()

    def _is_aimed_again(self, measured: Measured) -> bool:
        """Whether a plan was made for a pool that takes no time to have, and missed it.

        The next one is made for less, by twice what this one is over, unless that
        recomputes more than the time that this one takes beyond. Then it is made for the
        best of larger pools.
        """
        problem, free_bytes = self._problem, self._problem.free_pool_bytes
        if free_bytes is None or self._preferred > free_bytes:
            return False
        pool_bytes = measured.total_bytes - problem.fixed_bytes
        over = pool_bytes - free_bytes
        if over <= 0:
            return False
        lower = self._preferred - max(2 * over, self._room // LEAST_STEP)
        next_plan = self._search.plan(self._room, lower)
        seconds = measured.recompute_seconds + problem.seconds_for_pool(pool_bytes)
        if next_plan and next_plan[1].statistics.recompute_seconds < seconds:
            self._preferred = lower
        else:
            problem.give_up_free_pool()
            self._preferred = self._most()
        return True

    def _is_worth_another(self, measured: Measured, free_bytes: int) -> bool:
        """Whether a plan that keeps the budget leaves enough room for a better one."""
        enough = self._problem.slack_worth_using
        if len(self._seen) > 1:
            enough = _AFTER_A_MISS * SLACK_WORTH_USING
        if free_bytes <= enough * self._room:
            return False
        next_bytes = self._preferred + free_bytes // _PART_USED_NEXT
        return may_gain(measured, self._problem.least_recomputed(next_bytes))
