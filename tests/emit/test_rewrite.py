"""The rewritten program computes what the original does, whatever is evicted."""

import hypothesis
import hypothesis.strategies as st
import jax
import pytest
from random_programs import random_function, random_materialization, random_schedule
from steps import (
    TARGET,
    assert_trees_equal,
    compiled_graph,
    mlp_arguments,
    mlp_step,
    run,
    traced,
)

from coop_jax import _ext
from coop_jax.base import _compat
from coop_jax.emit.rewrite import RECOMPUTE_SCOPE, rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.plan.planner import PlanOptions, plan_pool, unconstrained


@hypothesis.given(
    seed=st.integers(0, 2**16),
    length=st.integers(1, 30),
    eviction_rate=st.sampled_from([0.05, 0.3, 1.0]),
    stored_rate=st.sampled_from([0.3, 1.0]),
)
def test_random_evictions_keep_every_value(seed, length, eviction_rate, stored_rate):
    function, arguments = random_function(seed, length)
    step = traced(function, *arguments)
    graph = build_graph(
        step.program, random_materialization(step.program, seed, stored_rate), TARGET
    )
    schedule = random_schedule(graph, seed, eviction_rate)
    assert _ext.validate(graph.core, schedule) == []
    segments = cut(graph, schedule, fence_free_inputs=bool(seed % 2))
    rewritten = rewrite(graph, segments)
    jax.extend.core.check_jaxpr(_compat.open_jaxpr(rewritten.to_jaxpr())[0])
    assert_trees_equal(run(rewritten, arguments), run(step.program, arguments))


@hypothesis.given(seed=st.integers(0, 2**16))
@pytest.mark.parametrize("policy", ["coop", "dtr", "dte", "lookahead"])
def test_planned_evictions_keep_every_value(policy, seed):
    function, arguments = random_function(seed, 25)
    step = traced(function, *arguments)
    graph = build_graph(step.program, random_materialization(step.program, seed, 1), TARGET)
    options = PlanOptions(policy=policy)
    smallest = _ext.minimum_pool(graph.core, options)
    schedule = plan_pool(graph, smallest.capacity, options)
    rewritten = rewrite(graph, cut(graph, schedule, fence_free_inputs=False))
    assert_trees_equal(run(rewritten, arguments), run(step.program, arguments))


def test_identity_without_evictions():
    step = traced(mlp_step, *mlp_arguments())
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    schedule = unconstrained(graph, PlanOptions())
    [segment] = cut(graph, schedule, fence_free_inputs=True)
    assert segment.fenced == ()
    rewritten = rewrite(graph, [segment])
    names = [eqn.primitive.name for eqn in step.program.eqns]
    assert sorted(eqn.primitive.name for eqn in rewritten.eqns) == sorted(names)


def test_recomputed_equations_keep_their_source_and_say_so():
    step = traced(mlp_step, *mlp_arguments(), donate_argnums=0)
    graph = compiled_graph(step)
    smallest = _ext.minimum_pool(graph.core, PlanOptions())
    rewritten = rewrite(graph, cut(graph, smallest.schedule, fence_free_inputs=False))
    recomputed = [
        eqn
        for eqn in rewritten.eqns
        if _compat.name_stack(eqn).split("/")[0] == RECOMPUTE_SCOPE
    ]
    assert recomputed
    assert all("steps.py" in _compat.source_line(eqn) for eqn in recomputed)


def test_effects_happen_once_and_in_order(capfd):
    def step(weights, x):
        new_weights, value = mlp_step(weights, x)
        jax.debug.print("first {}", value, ordered=True)
        jax.debug.print("second {}", value * 2, ordered=True)
        return new_weights, value

    arguments = mlp_arguments()
    made = traced(step, *arguments)
    graph = build_graph(made.program, from_rules(made.program), TARGET)
    smallest = _ext.minimum_pool(graph.core, PlanOptions())
    assert smallest.schedule.statistics.recomputations > 0
    rewritten = rewrite(graph, cut(graph, smallest.schedule, fence_free_inputs=False))
    jax.block_until_ready(run(rewritten, arguments))
    jax.effects_barrier()
    printed = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    assert printed == ["first", "second"]


def test_callbacks_into_python_are_never_repeated():
    calls = []

    def host(x):
        calls.append(None)
        return x * 2

    def step(weights, x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return mlp_step(weights, jax.pure_callback(host, shape, x))

    arguments = mlp_arguments()
    made = traced(step, *arguments)
    graph = build_graph(made.program, from_rules(made.program), TARGET)
    schedule = random_schedule(graph, seed=0, eviction_rate=1.0)
    assert (schedule.steps[:, 0] == _ext.Schedule.RECOMPUTE).any()
    rewritten = rewrite(graph, cut(graph, schedule, fence_free_inputs=False))
    jax.block_until_ready(run(rewritten, arguments))
    assert len(calls) == 1
