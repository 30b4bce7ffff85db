"""A graph in several pools: what was found for fewer bytes is a plan for more."""

import math

import pytest
from oracles import random_graphs

from coop_jax import planning

# So little that single plans depend on luck.
OPTIONS = {"search_effort": 1000, "packing_effort": 10_000}


def seconds(schedule):
    return math.inf if schedule is None else schedule.statistics.recompute_seconds


def alone(graph, pool, **options):
    try:
        return planning.plan_graph(graph, pool, **options)
    except planning.InfeasiblePoolError:
        return None


@pytest.mark.parametrize("limits_live_bytes", [True, False])
def test_more_bytes_never_cost_recomputation(limits_live_bytes):
    graph = random_graphs.dense(40, 1)
    options = OPTIONS | {"limits_live_bytes": limits_live_bytes}
    needed = planning.unconstrained(graph, **options).statistics
    most = needed.max_live_bytes if limits_live_bytes else needed.peak_bytes
    pools = [most * percent // 100 for percent in (*range(60, 76), 100)]
    costs = [seconds(plan) for plan in planning.plan_pools(graph, pools, **options)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0
    # Of plans that do not know of each other, some are worse.
    costs_alone = [seconds(alone(graph, pool, **options)) for pool in pools]
    assert costs_alone != sorted(costs_alone, reverse=True)
    assert all(ours <= other for ours, other in zip(costs, costs_alone, strict=True))


def test_schedules_are_in_the_order_of_the_pools():
    graph = random_graphs.chain(20, 0)
    peak = planning.unconstrained(graph).statistics.peak_bytes
    pools = [peak, 64, peak * 3 // 4, peak]
    whole, none, some, again = planning.plan_pools(graph, pools)
    assert none is None
    assert seconds(whole) == seconds(again) == 0 < seconds(some)
    assert some.capacity == pools[2]
    assert planning.validate(graph, some, pool_bytes=pools[2]) == []


def test_pools_are_bytes():
    graph = random_graphs.chain(5, 0)
    with pytest.raises(TypeError, match=r"plan_pools\(pools=\.\.\.\).*1\.5.*Give bytes"):
        planning.plan_pools(graph, [100, 1.5])
    with pytest.raises(ValueError, match=r"plan_pools\(pools=\.\.\.\).*-1"):
        planning.plan_pools(graph, [-1])
