"""No plan is looked for where there is none, and no bisection made that cannot win."""

import dataclasses

import pytest
from random_steps import random_step
from steps import QUICK, TARGET, compiled_graph, mlp_arguments, mlp_step, traced

from coop_jax.graph.step_graph import build_graph
from coop_jax.plan import planner
from coop_jax.plan.planner import (
    least_recomputation,
    planner_options,
    smallest_of,
    smallest_pool,
)
from coop_jax.plan.refused_pools import RefusedPools

OPTIONS = planner_options(QUICK, TARGET.alignment_bytes)


@pytest.fixture(scope="module")
def graph():
    return compiled_graph(traced(mlp_step, *mlp_arguments(layers=4)))


@pytest.fixture
def asked(monkeypatch):
    """The calls of a function of the planner, by its name."""

    def recorded(name):
        calls, original = [], getattr(planner, name)

        def call(*args):
            calls.append(args)
            return original(*args)

        monkeypatch.setattr(planner, name, call)
        return calls

    return recorded


def test_a_refused_pool_covers_those_with_less_room_alone(graph, asked):
    calls, refused = asked("plan_pool"), RefusedPools()
    smallest = smallest_pool(graph, OPTIONS).pool_bytes

    def plan(graph, room, preferred=None):
        before = len(calls)
        found = least_recomputation([graph], OPTIONS, room, preferred, refused)
        return found, len(calls) - before

    room = smallest * 3 // 4
    assert plan(graph, room) == (None, 1)
    assert plan(graph, room) == (None, 0)
    assert plan(graph, room - 64) == (None, 0)
    assert plan(graph, room, room // 2) == (None, 0)
    assert plan(graph, room + 64)[1] == 1
    found, num_calls = plan(graph, smallest)
    assert found is not None
    assert num_calls == 1
    more = graph.with_stored_scratch({graph.operations[0].anchor: 64})
    assert plan(more, room) == (None, 0)


def test_without_scratch_a_pool_may_do(graph, asked):
    calls, refused = asked("plan_pool"), RefusedPools()
    room = smallest_pool(graph, OPTIONS).pool_bytes
    more = graph.with_stored_scratch({op.anchor: room for op in graph.operations})
    assert least_recomputation([more], OPTIONS, room, None, refused) is None
    assert least_recomputation([graph], OPTIONS, room, None, refused) is not None
    assert len(calls) == 2


def test_other_orders_are_asked_of_their_own(graph):
    refused = RefusedPools()
    other = build_graph(graph.program, graph.stored, TARGET, early=True)
    refused.add(graph, 1 << 20, None)
    assert refused.covers(graph, 1 << 20, None)
    assert not refused.covers(other, 1 << 20, None)
    bytes_changed = dataclasses.replace(graph, in_pool_bytes=(*graph.in_pool_bytes[1:], 0))
    assert not refused.covers(bytes_changed, 1 << 20, None)


def orders(seed):
    """A step in XLA's order and in the one that frees early, with their smallest pools,
    each found without the other."""
    fn, args, options = random_step(seed)
    graph = compiled_graph(traced(fn, *args, **options))
    graphs = [graph, build_graph(graph.program, graph.stored, TARGET, early=True)]
    return graphs, [smallest_pool(one, OPTIONS).pool_bytes for one in graphs]


@pytest.mark.slow
def test_a_later_order_may_have_the_smallest_pool():
    swapped = 0
    for seed in range(6):
        (written, early), pools = orders(seed)
        first = dataclasses.replace(written, is_early=True)
        then = dataclasses.replace(early, is_early=False)
        found, smallest = smallest_of([first, then], OPTIONS)
        assert smallest.pool_bytes == min(pools)
        # Of equals the first; and all of it is that of the order alone.
        assert found is [first, then][pools.index(min(pools))]
        alone = smallest_pool(found, OPTIONS)
        assert smallest.blocking_operation == alone.blocking_operation
        assert smallest.schedule.steps.tobytes() == alone.schedule.steps.tobytes()
        swapped += found is then
    assert swapped


def test_an_order_that_needs_more_in_any_case_is_not_bisected(graph, monkeypatch):
    """One operation of it needs more than the whole smallest pool of another."""
    smallest = smallest_pool(graph, OPTIONS).pool_bytes
    last = graph.operations[-1].anchor
    wide = graph.with_stored_scratch({last: 2 * smallest})
    bisected, original = [], planner._ext.minimum_pool_quickly

    def quickly(core, options):
        bisected.append(core)
        return original(core, options)

    monkeypatch.setattr(planner._ext, "minimum_pool_quickly", quickly)
    for graphs in ([graph, wide], [wide, graph]):
        bisected.clear()
        found, pool = smallest_of(graphs, OPTIONS)
        assert found is graph
        assert pool.pool_bytes == smallest
        assert bisected == [graph.core]
