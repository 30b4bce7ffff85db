"""The smallest pool and the bound below it."""

import itertools

import pytest
from core.programs import Op, Program, chain, peak_without_eviction, programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import random_graphs

from coop_jax import _ext


def test_lower_bound_counts_operands_results_and_workspace():
    program = Program([Op([], [0]), Op([0], [1], workspace_bytes=10)], [64, 128])
    assert _ext.lower_bound(program.graph()) == (256, 1)
    assert _ext.lower_bound(program.graph(), alignment=1) == (202, 1)


def test_lower_bound_counts_a_pair_in_place_once():
    program = Program([Op([], [0]), Op([0], [1])], [64, 64], in_place=[(1, 0, 1)])
    assert _ext.lower_bound(program.graph()) == (64, 0)
    # Not if the input must live on and cannot come back.
    program.ops[0].recomputable = False
    program.ops.append(Op([0], []))
    assert _ext.lower_bound(program.graph()) == (128, 1)


def test_lower_bound_counts_what_must_stay():
    # Tensor 0 is pinned, 1 cannot be recomputed and is read at the end.
    ops = [Op([], [1], recomputable=False), Op([], [2]), Op([1], [3])]
    program = Program(ops, [64] * 4, pinned={0})
    assert _ext.lower_bound(program.graph()) == (192, 1)


def test_lower_bound_at_both_ends():
    program = Program([Op([0], []), Op([1], [])], [64, 64])
    assert _ext.lower_bound(program.graph()) == (128, -1)
    program = Program([Op([], [0]), Op([], [1])], [64, 64], output={0, 1})
    assert _ext.lower_bound(program.graph()) == (128, 2)


def test_lower_bound_of_a_mutation():
    program = Program(
        [Op([0], [1]), Op([0, 1], [2])], [64] * 3, pinned={0, 2}, overwrites=[(1, 0, 2)]
    )
    assert _ext.lower_bound(program.graph()) == (128, 0)


def test_minimum_pool_of_a_chain():
    graph, options = chain(32, 64).graph(), _ext.PlanOptions()
    bound, op = _ext.lower_bound(graph)
    smallest = _ext.minimum_pool(graph, options, tolerance=0)
    assert _ext.validate(graph, smallest.schedule) == []
    assert smallest.schedule.capacity == smallest.capacity
    if smallest.capacity == bound:
        assert smallest.failure_below is None
        assert smallest.blocking_operation == op
    else:
        assert isinstance(smallest.failure_below, _ext.PlanFailure)
        assert smallest.failure_below.capacity == smallest.capacity - 64
        assert smallest.blocking_operation == smallest.failure_below.op


@pytest.mark.parametrize("policy", ["coop", "lookahead", "dtr"])
def test_hardly_ever_a_smaller_pool_has_a_plan(policy):
    """Whether a pool has a plan does not fall with its bytes, so that bisecting alone
    misses plans: what is named may do so in one of twenty graphs."""
    options = _ext.PlanOptions(policy=policy)
    num_graphs = num_missed = 0
    for family in ("layered", "u_shaped", "dense", "step"):
        for num_ops, seed in itertools.product((30, 60), range(10)):
            num_graphs += 1
            graph = random_graphs.FAMILIES[family](num_ops, seed)
            smallest = _ext.minimum_pool(graph, options).capacity
            below = _ext.plan(graph, smallest * 15 // 16, options)
            num_missed += not isinstance(below, _ext.PlanFailure)
    assert num_missed <= num_graphs // 20


@pytest.mark.parametrize("family", ["layered", "u_shaped", "dense", "step"])
def test_the_two_halves_of_a_search_for_the_smallest_pool(family):
    """Together they find what one call does; nothing is planned to the end of a graph whose
    pool is larger than that of another."""
    options = _ext.PlanOptions(limits_live_bytes=True, overhead_limit=10.0)
    given_up = 0
    for num_ops, seed in itertools.product((12, 30, 60), range(4)):
        graph = random_graphs.FAMILIES[family](num_ops, seed)
        whole = _ext.minimum_pool(graph, options)
        quick = _ext.minimum_pool_quickly(graph, options)
        for most in (None, whole.capacity):
            found = _ext.minimum_pool_from(graph, options, quick, most)
            assert found.capacity == whole.capacity
            assert found.blocking_operation == whole.blocking_operation
            assert found.schedule.steps.tobytes() == whole.schedule.steps.tobytes()
        for most in (0, whole.capacity - 1):
            found = _ext.minimum_pool_from(graph, options, quick, most)
            assert found is None or found.capacity == whole.capacity
            given_up += found is None
    assert given_up >= 23


def test_minimum_pool_at_the_lower_bound():
    graph = Program([Op([], [0]), Op([0], [1])], [64, 64]).graph()
    smallest = _ext.minimum_pool(graph, _ext.PlanOptions())
    assert (smallest.capacity, smallest.blocking_operation) == (128, 1)
    assert smallest.failure_below is None


def test_minimum_pool_refuses():
    with pytest.raises(ValueError, match="`tolerance` must not be negative, got -1"):
        _ext.minimum_pool(chain(2).graph(), _ext.PlanOptions(), tolerance=-1)
    with pytest.raises(ValueError, match="lower_bound: `alignment` must be a power"):
        _ext.lower_bound(chain(2).graph(), alignment=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), policy=st.sampled_from(["coop", "dtr", "dte", "lookahead"]))
def test_order_of_bound_minimum_and_peak(program, policy):
    graph = program.graph()
    options = _ext.PlanOptions(policy=policy, overhead_limit=50)
    bound, op = _ext.lower_bound(graph)
    assert -1 <= op <= graph.num_ops
    smallest = _ext.minimum_pool(graph, options)
    assert bound <= smallest.capacity
    if bound > 0:
        below = _ext.plan(graph, bound - 1, options)
        assert isinstance(below, _ext.PlanFailure)
    schedule = _ext.unconstrained(graph, options)
    assert _ext.validate(graph, schedule) == []
    assert schedule.statistics.forced_evictions == 0
    assert schedule.statistics.recomputations == 0
    peak = peak_without_eviction(program, policy=policy)
    assert smallest.schedule.statistics.peak_bytes <= max(peak, smallest.capacity)
