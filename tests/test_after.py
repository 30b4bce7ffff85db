"""Updates that wait for what reads the old value."""

import jax
import jax.numpy as jnp
import optax
import pytest
from models import transformer_problem
from steps import NEEDS_CUDA, TARGET, assert_trees_equal, mlp_arguments, traced

from coop_jax import _compat, topology
from coop_jax.after import after_p
from coop_jax.graph import build_graph
from coop_jax.materialize import from_rules, of_compiled, tag
from coop_jax.measure import memory_figures
from coop_jax.plan import (
    PlanOptions,
    plan_pool,
    planner_options,
    smallest_pool,
    unconstrained,
)
from coop_jax.rewrite import rewrite
from coop_jax.segments import cut
from coop_jax.targets import named


def early_update_step(weights, x):
    """Every weight is updated before the gradient that reads it goes on."""
    activations, hidden = [], x
    for w in weights:
        activations.append(hidden)
        hidden = jnp.tanh(hidden @ w)
    gradient = hidden / hidden.size
    new = []
    for w, before in zip(weights[::-1], activations[::-1], strict=True):
        further = gradient @ w.T
        new.append(w - 0.1 * (before.T @ gradient))
        gradient = further
    return new[::-1], gradient.sum()


def rewritten(orders_updates, *arguments):
    step = traced(early_update_step, *arguments, donate_argnums=0)
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    segments = cut(graph, unconstrained(graph, PlanOptions()), fence_free_inputs=True)
    return step, graph, rewrite(graph, segments, orders_updates=orders_updates)


def test_one_for_every_update_that_another_reader_precedes():
    step, graph, program = rewritten(True, *mlp_arguments(layers=4, batch=64, width=256))
    waits = [eqn for eqn in program.eqns if eqn.primitive is after_p]
    weights = {step.program.invars[k] for k in range(4)}
    assert len(graph.overwritten_by) == 4
    assert {eqn.invars[0] for eqn in waits} == weights
    made = {v: i for i, eqn in enumerate(program.eqns) for v in eqn.outvars}
    for eqn in waits:
        readers = [i for i, e in enumerate(program.eqns) if eqn.invars[0] in e.invars]
        last = max(made[v] for v in eqn.invars[1:])
        assert last < program.eqns.index(eqn) == max(readers)


def test_without_it_nothing_waits():
    _, _, program = rewritten(False, *mlp_arguments(layers=4, batch=64, width=256))
    assert all(eqn.primitive is not after_p for eqn in program.eqns)


def test_the_values_are_the_same():
    arguments = mlp_arguments(layers=4, batch=64, width=256)
    _, _, program = rewritten(True, *arguments)
    run = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))
    *weights, value = run(*jax.tree.leaves(arguments))
    assert_trees_equal((weights, value), jax.jit(early_update_step)(*arguments))


def test_it_can_be_batched_and_differentiated():
    def double(value, other):
        return 2 * after_p.bind(value, other)

    values, others = jnp.arange(3.0), jnp.ones((3, 2))
    assert_trees_equal(jax.vmap(double)(values, others), 2 * values)
    assert_trees_equal(jax.vmap(double, (0, None))(values, others), 2 * values)
    assert jax.grad(lambda x: double(x, others).sum())(3.0) == 2


@NEEDS_CUDA
@pytest.mark.slow
def test_on_a_gpu_fewer_weights_are_in_memory_twice():
    """XLA would run updates first, and then copies the new weights over the old."""
    problem = transformer_problem(
        num_layers=6,
        width=512,
        num_heads=8,
        batch_size=2,
        sequence_length=512,
        optimizer=optax.sgd(0.1),
    )
    arguments = topology.placed(
        (problem.state, problem.batch, problem.key), topology.named_device("h200")
    )
    step = traced(problem.train_step, *arguments, donate_argnums=0)
    compiled = step.compile(tag(step.program))
    materialization = of_compiled(step.program, compiled)
    graph = build_graph(step.program, materialization, named("h200"), early=True)
    options = planner_options("search", 256)
    pool_bytes = smallest_pool(graph, options).pool_bytes
    segments = cut(graph, plan_pool(graph, pool_bytes, options), fence_free_inputs=True)

    def measured(orders_updates):
        program = rewrite(graph, segments, orders_updates=orders_updates)
        compiled = step.compile(program)
        return memory_figures(compiled).total_bytes, compiled.as_text().count(" copy(")

    (any_order, copies_then), (in_order, copies_now) = measured(False), measured(True)
    assert copies_now < copies_then
    assert in_order < any_order
