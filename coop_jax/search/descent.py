"""Descent: plans for one budget, each corrected by the compilation of the last one.

A first plan leaves a little of the budget free. One that misses teaches scratch
(`search.learnt_scratch`). That explains most of a miss, not all of it, and scratch learnt
from one plan may not hold for another: so a second miss counts in full, and where no plan
fits with all learnt scratch, the graph is planned as it was read at first, with the plan's
error left free.
"""

from __future__ import annotations

from coop_jax.plan.planner import Planned, key_of
from coop_jax.search.candidates import (
    LEAST_STEP,
    SLACK_WORTH_USING,
    Candidate,
    Enough,
    Measured,
    best_of,
    is_slower,
    least,
    may_gain,
)
from coop_jax.search.learnt_scratch import LearntScratch
from coop_jax.search.order_feedback import same_fences
from coop_jax.search.other_orders import for_memory, in_order
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


class Descent:
    """The plans for one budget: with less and less room until one keeps it, and one more
    with some of the room that this leaves free.

    Arguments:
        problem: the step.
        budget_bytes: the budget.
    """

    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        self._learnt = LearntScratch(problem)
        self._problem = problem
        self._budget_bytes = budget_bytes
        self._room = budget_bytes - problem.fixed_bytes
        self._preferred = self._most()
        self._uses_all = self._preferred < problem.worthwhile.pool_bytes
        self._error = 0  # The likely error of the next plan, in bytes.
        # Bytes that the next plan has to leave free for its error.
        self._margin = self._room // _LEFT_ON_MESHES if problem.is_gathered_early else 0
        self._worst = 0  # The largest error of a plan, in bytes.
        self._found: Measured | None = None
        self._seen: set[bytes] = set()
        self._is_for_memory, self._may_be_for_memory = False, True
        self._ordered: list[Candidate] = []  # Plans that missed, with order fences.
        self._start_skipping()

    def _most(self) -> int:
        """The most bytes that a first plan may use: with a margin, and as many as are worth
        the time that they take."""
        with_margin = self._room - int(_MARGIN * self._room)
        return int(min(with_margin, self._problem.worthwhile.pool_bytes))

    def best(
        self, num_left: int, *, compiles_unlikely: bool, is_enough: Enough
    ) -> Measured | None:
        """The plan that recomputes least of at most `num_left` that are compiled; if more
        than one may be, also with order fences."""
        while len(self._seen) < num_left:
            planned = self._next()
            if planned is None or not (compiles_unlikely or self._is_likely(planned)):
                break
            self._seen.add(key_of(*planned))
            fences = same_fences(*planned, self._ordered)
            measured = self._problem.compile_plan(
                *planned,
                self._error,
                ordered_before=fences,
                is_for_memory=self._is_for_memory,
            )
            misses = not measured.keeps(self._budget_bytes)
            if misses and self._found is None and num_left > 1:
                measured = self._in_order(measured)
            if is_enough(measured):
                return self._best_with(measured)
            over = measured.total_bytes - self._budget_bytes
            if over > 0 or measured.compiled is None:
                if self._found is not None:
                    break
                self._correct(planned, measured, over)
            elif not self._uses_all:
                self._found = self._best_with(measured)
                if not self._is_aimed_again(measured):
                    break
            elif self._found is not None:
                return self._best_with(measured)
            else:
                self._found = measured
                if not self._is_worth_another(measured, -over):
                    break
                self._preferred += -over // _PART_USED_NEXT
                self._error = 0
        return self._found

    def _in_order(self, measured: Measured) -> Measured:
        """A plan that misses the budget, ordered for memory by XLA or with order fences if
        these help: fences tear apart what fuses.

        Where they keep it and tear apart so much that the step is noticeably slower, a
        plan for fewer bytes may be faster: it is looked for as if they did not keep it,
        and the executables decide in the end (`driver`).
        """
        again = for_memory(self._problem, measured) if self._may_be_for_memory else None
        if again is not None:
            # What helps one plan helps the next.
            self._is_for_memory = least(again) < least(measured)
            self._may_be_for_memory = False
            measured = min(measured, again, key=least)
            if measured.keeps(self._budget_bytes):
                return measured
        ordered = in_order(self._problem, measured)
        seconds = measured.executable_seconds
        if seconds is not None and ordered.keeps(self._budget_bytes):
            if is_slower(ordered, seconds):
                return measured
        self._ordered.append(ordered.candidate)
        return ordered

    def _best_with(self, measured: Measured) -> Measured | None:
        """The better one of two plans, the last one among them, that keeps the budget."""
        tried = [measured] if self._found is None else [self._found, measured]
        return best_of(tried, self._budget_bytes)

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
                if self._learnt.has_learnt and (planned is None or excess > 0):
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
        planned = self._learnt.plan(self._room, self._preferred)
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
        planned = self._skipped[-1] if self._skipped else self._learnt.plan(self._room)
        self._skipped, self._may_skip = [], 0
        return planned

    def _start_skipping(self) -> None:
        self._skipped: list[Planned] = []
        # The plan that stays the same however few bytes are preferred.
        self._unchanging: Planned | None = None
        self._may_skip = _MOST_SKIPPED

    def _start_without_scratch(self) -> None:
        """Plan the graph as it was read at first, with the plan's error left free."""
        self._learnt.forget()
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
        if self._learnt.learn(planned, measured):
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
        worthwhile = self._problem.worthwhile
        if worthwhile.free_bytes is None or self._preferred > worthwhile.free_bytes:
            return False
        pool_bytes = measured.total_bytes - self._problem.fixed_bytes
        over = pool_bytes - worthwhile.free_bytes
        if over <= 0:
            return False
        lower = self._preferred - max(2 * over, self._room // LEAST_STEP)
        next_plan = self._learnt.plan(self._room, lower)
        seconds = measured.recompute_seconds + worthwhile.seconds_for(pool_bytes)
        if next_plan and next_plan[1].statistics.recompute_seconds < seconds:
            self._preferred = lower
        else:
            worthwhile.give_up_free()
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
