"""Plans near the lower bound: how far above the optimum's seconds they are."""

import numpy as np
import pytest
from oracles import knapsack

from coop_jax import planning


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "most"), [(30, 1.001), (100, 1.001), (300, 1.001)])
def test_recomputed_seconds_are_near_those_of_the_knapsack(count, most, seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1_000, 5_000, count)
    seconds = sizes * random.uniform(0.9, 1.1, count) * 1e-6
    graph = knapsack.graph(sizes, seconds)
    options = {"limits_live_bytes": True, "alignment": 1}
    needed = planning.unconstrained(graph, **options).statistics.max_live_bytes
    lacking = int(0.35 * sizes.sum())
    least = knapsack.least_seconds(sizes, seconds, lacking)

    plan = planning.plan_graph(graph, needed - lacking, **options).statistics

    assert plan.recompute_bound_seconds <= least * (1 + 1e-9)
    assert least * (1 - 1e-9) <= plan.recompute_seconds <= most * least


def test_the_optimum_of_a_knapsack():
    sizes, seconds = np.array([4, 3, 2]), np.array([4.0, 2.0, 3.0])
    assert knapsack.least_seconds(sizes, seconds, 5) == 5.0
    assert knapsack.least_seconds(sizes, seconds, 9) == 9.0
