"""Closing in: budgets near the planner's bound are used, not only met."""

from __future__ import annotations

import itertools
import random

import pytest
from random_steps import random_step
from steps import QUICK, traced

from coop_jax import InfeasibleBudgetError
from coop_jax.compile.as_written import compile_both
from coop_jax.search.closing_in import closed_in
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import problem_of

# Of what a step needs beyond its smallest plan.
PARTS = (0.0, 0.2, 0.6, 0.85)
# Seconds are sums of floats in different orders.
EQUAL = 1 + 1e-9


class Asked:
    """A step with its budgets; every search is a fresh one."""

    def __init__(self, seed):
        fn, args, options = random_step(seed)
        self._step = traced(fn, *args, **options)
        self._both = compile_both(self._step)
        search = self.search()
        found = search.smallest()
        self.is_planned = found.total_bytes < self._both.total_bytes
        smallest = min(found.total_bytes, self._both.total_bytes)
        slack = self._both.total_bytes - smallest
        self.budgets = [smallest + int(part * slack) for part in PARTS]

    def search(self):
        problem = problem_of(
            self._step, QUICK, lambda line: None, self._both.tagged, XLA_PLACES
        )
        return BudgetSearch(problem)


def kept(search, budget):
    return [one for one in search.problem.measured if one.keeps(budget)]


@pytest.mark.parametrize(
    "seed",
    [
        22,
        pytest.param(21, marks=pytest.mark.slow),
        pytest.param(25, marks=[pytest.mark.slow, pytest.mark.hand]),
    ],
)
def test_more_room_is_never_slower(seed):
    """By the instructions of the executables; in one search, whatever is asked first, all
    that fits is among what is returned."""
    asked = Asked(seed)
    assert asked.is_planned or seed not in (21, 22, 25)
    search, found = asked.search(), {}
    for again in range(2):
        order = list(asked.budgets)
        random.Random(seed + again).shuffle(order)
        for budget in order:
            try:
                one = search.run(budget)
            except InfeasibleBudgetError:
                assert not kept(search, budget)
                continue
            assert one.total_bytes <= budget
            least = min(other.executable_seconds for other in kept(search, budget))
            assert one.executable_seconds == least
            for smaller, other in found.items():
                if smaller <= budget:
                    assert one.executable_seconds <= other.executable_seconds
            found[budget] = one


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [22, *(pytest.param(seed, marks=pytest.mark.hand) for seed in (5, 17, 25))]
)
def test_a_budget_near_the_bound_is_used(seed):
    """With a little more than the smallest plans need, these steps recompute much less."""
    asked = Asked(seed)
    found = [asked.search().run(budget) for budget in asked.budgets[1:]]
    seconds = [one.recompute_seconds for one in found]
    for less, more in itertools.pairwise(seconds):
        assert more <= less * EQUAL, "for each budget the step was searched afresh"
    smallest = asked.search().smallest().recompute_seconds
    assert seconds[0] < 0.6 * smallest


def test_at_most_so_many_plans_are_compiled():
    asked = Asked(22)
    search = asked.search()
    budget = asked.budgets[-1]
    found = search.smallest()
    for num_left in (0, 1, 2):
        before = search.num_compilations
        best = closed_in(search.problem, found, budget, num_left)
        assert search.num_compilations <= before + num_left
        assert best.executable_seconds <= found.executable_seconds
        found = best
    assert search.num_compilations > 1
    fresh = asked.search()
    fresh.run(budget)
    assert fresh.num_compilations <= 6


def test_no_plan_is_made_where_those_for_more_show_that_none_gains_enough():
    asked = Asked(22)
    search = asked.search()
    problem, budget = search.problem, asked.budgets[-1]
    found = search.smallest()
    room = budget - problem.fixed_bytes
    assert problem.least_recomputed(0) == 0
    for pool in (room // 2, room):
        problem.plan(problem.graphs, room, pool, spares_partial_results=False)
    less, more = problem.least_recomputed(room // 2), problem.least_recomputed(room)
    assert less >= more
    assert problem.least_recomputed(room + 1) == 0
    asked_for = []
    problem.plan = lambda *args, **options: asked_for.append(args)
    problem.least_recomputed = lambda pool: found.recompute_seconds
    assert closed_in(problem, found, budget, 2).total_bytes <= budget
    assert not asked_for
    problem.least_recomputed = lambda pool: 0.0
    closed_in(problem, found, budget, 2)
    assert asked_for
