"""The search against the optimum, where that can be found."""

import optimality_gap
import pytest
from core.programs import Program
from oracles import exhaustive
from oracles.rematerialization_ilp import least_recomputation
from oracles.test_oracles import budgets, tight_program

from coop_jax import _ext

OPTIONS = _ext.PlanOptions(policy="search", limits_live_bytes=True)


def recomputable_program(seed: int) -> Program:
    """As a training step: its inputs lie outside, and everything can be made again."""
    program = tight_program(seed)
    program.external, program.pinned = {0}, set()
    program.in_place = [pair for pair in program.in_place if pair[1] != 0]
    for op in program.ops:
        op.recomputable = True
    return program


def searched_seconds(graph, budget):
    schedule = _ext.plan(graph, budget, OPTIONS)
    if not isinstance(schedule, _ext.Schedule):
        return None
    return schedule.statistics.recompute_seconds


@pytest.mark.parametrize("seed", range(40))
def test_small_programs(seed):
    graph = recomputable_program(seed).graph()
    for budget in budgets(graph, (0, 0.1, 0.3)):
        expected = exhaustive.least_recomputation(graph.arrays(), budget)
        assert searched_seconds(graph, budget) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        # A small value is in the way; what it is made from is kept behind its last use.
        pytest.param("mlp-4", 0.5, marks=pytest.mark.slow),
        # A value has to be kept for a part of the way between two uses.
        pytest.param("random-30", 0, marks=[pytest.mark.slow, pytest.mark.hand]),
        # To drop the cheapest first leads to a plan that no small change improves.
        pytest.param("mlp-6", 0.5, marks=pytest.mark.slow),
        # What is dear has to be kept behind its last use, so that what is cheap can go.
        pytest.param("convnet", 0.6, marks=[pytest.mark.slow, pytest.mark.hand]),
    ],
)
def test_where_a_simpler_search_gets_stuck(name, share):
    graph = optimality_gap.GRAPHS[name]()
    peak = _ext.unconstrained(graph, OPTIONS).statistics.max_live_bytes
    budget = max(int(share * peak), _ext.minimum_pool(graph, OPTIONS).capacity)
    optimum = least_recomputation(graph.arrays(), budget, time_limit=120)
    assert optimum.is_proven
    # Of one order of recomputations; the search may find a better one in another.
    schedule = _ext.plan(graph, budget, OPTIONS)
    assert _ext.validate(graph, schedule) == []
    searched = schedule.statistics.recompute_seconds
    assert schedule.statistics.recompute_bound_seconds <= searched
    assert searched <= optimum.seconds * (1 + 1e-6)
