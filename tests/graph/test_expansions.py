"""Values that are larger than what they are made of, and the bound without them."""

import jax
import jax.numpy as jnp
import pytest
from steps import (
    QUICK,
    TARGET,
    compiled_graph,
    largest_difference,
    mlp_arguments,
    traced,
)

import coop_jax
from coop_jax import backends
from coop_jax.emit.segments import cut
from coop_jax.graph import stored_values
from coop_jax.graph.expansions import expansions, without_expansions
from coop_jax.plan.planner import unconstrained
from coop_jax.search.graphs import graphs_of


def descent(loss):
    def step(weights, x):
        value, grads = jax.value_and_grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    return step


def features(weights, x):
    for w in weights:
        x = x + jnp.tanh(x @ w)
    return x


def distances(weights, x):
    h = features(weights, x)
    return jnp.exp(-jnp.square(h[:, None] - h[None]).sum(-1)).sum()


def additive_attention(weights, x):
    h = features(weights, x)
    logits = jnp.tanh((h @ weights[0])[:, None] + (h @ weights[1])[None]).sum(-1)
    return jnp.square(jax.nn.softmax(logits) @ h).sum()


def outer_products(weights, x):
    """What a product reads has to be in memory."""
    h = features(weights, x)
    pairs = (h[:, None] - h[None]).reshape(-1, h.shape[1])
    return jnp.square(pairs @ weights[0]).sum()


ARGS = mlp_arguments(layers=6, batch=128, width=64)
PAIRS = (128, 128, 64)


def stored_of(loss):
    step = traced(descent(loss), *ARGS)
    compiled = step.compile(stored_values.tag(step.program))
    return step.program, backends.stored_values(step.program, compiled)


@pytest.mark.parametrize("loss", [distances, additive_attention])
def test_what_is_made_of_little_for_reductions_is_an_expansion(loss):
    program, stored = stored_of(loss)
    found = expansions(program, stored)
    assert {v.aval.shape for v in found} == {PAIRS}
    assert not found.keys() & without_expansions(program, stored).stored_bytes.keys()


def test_what_a_product_reads_is_none():
    program, stored = stored_of(outer_products)
    assert expansions(program, stored) == {}
    assert without_expansions(program, stored) is stored


def test_results_and_what_takes_as_much_as_it_is_made_of_are_none():
    program, stored = stored_of(lambda weights, x: jnp.square(features(weights, x)).sum())
    assert expansions(program, stored) == {}
    step = traced(lambda x: x[:, None] - x[None], ARGS[1])
    compiled = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, compiled)
    assert expansions(step.program, stored) == {}


@pytest.mark.parametrize("budget", ["60%", "30%"])
def test_a_budget_below_an_expansion_is_not_refused(budget):
    written = jax.jit(descent(distances))(*ARGS)
    step = coop_jax.remat_train_step(
        descent(distances), budget=budget, planner=QUICK, donate_argnums=0
    )
    plan = step.plan(*ARGS)
    assert plan.measured_bytes <= plan.budget_bytes < expansion_bytes()
    assert plan.predicted_bytes > 0.8 * plan.measured_bytes
    found = step(*jax.tree.map(jnp.copy, ARGS))
    assert largest_difference(found, written) < 1e-5


def test_readers_of_an_expansion_are_in_different_segments():
    program, stored = stored_of(distances)
    options = QUICK.filled(alignment=64, limits_live_bytes=True)
    graph = graphs_of(program, stored, TARGET, options)[-1]
    assert len(graph.expansions) == 3
    schedule = unconstrained(graph, options)
    for segment in cut(graph, schedule, fence_free_inputs=False):
        inside = [graph.expansions.get(e.operation, ()) for e in segment.executions]
        computed = [v for values in inside for v in values]
        assert len(computed) == len(set(computed))


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12),
    reason="there XLA stores this one for each of its readers, and the budget is refused",
)
@pytest.mark.parametrize("donated", [1, None])
def test_what_an_expansion_is_made_of_may_be_an_argument(donated):
    def metric(weights, x):
        scaled = (x[:, None] - jnp.flip(x)[None]) * features(weights[:3], weights[3])
        return jnp.exp(-jnp.square(scaled[:, :, None]).sum((-1, -2))).sum()

    def step(weights, x):
        return [*descent(metric)(weights[:4], x), x + 1]

    args = ([0.1 * jnp.eye(64)] * 3 + [jnp.ones(64)], ARGS[1])
    planned = coop_jax.remat_train_step(
        step, budget="40%", planner=QUICK, donate_argnums=donated
    )
    plan = planned.plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    written = jax.jit(step)(*args)
    assert largest_difference(planned(args[0], args[1].copy()), written) < 1e-5


def test_plans_without_expansions_are_saved(tmp_path):
    path = str(tmp_path / "plan.json")
    step = coop_jax.remat_train_step(descent(distances), budget="30%", planner=QUICK)
    plan = step.plan(*ARGS)
    plan.save(path)
    again = coop_jax.remat_train_step(
        descent(distances), budget="30%", planner=QUICK, plan=path
    )
    assert again.plan(*ARGS).measured_bytes == plan.measured_bytes


def test_the_body_of_a_loop_as_it_is_stores_its_expansions():
    def train(weights, xs):
        return jax.lax.scan(descent(distances), weights, xs)

    args = ARGS[0], jnp.stack([ARGS[1], 2 * ARGS[1], ARGS[1]])
    step = coop_jax.remat_train_step(train, budget="60%", planner=QUICK)
    plan = step.plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    assert abs(plan.predicted_bytes - plan.measured_bytes) < 0.1 * plan.measured_bytes
    assert not any(loop.recomputations for loop in plan.loops)
    assert largest_difference(step(*args), jax.jit(train)(*args)) < 1e-5


def test_an_arena_takes_no_expansions():
    step = coop_jax.remat_train_step(
        descent(distances), budget="60%", planner=QUICK, placement="arena", arena_debug=True
    )
    written = jax.jit(descent(distances))(*ARGS)
    assert largest_difference(step(*ARGS), written) < 1e-5


def test_the_budget_that_an_error_names_is_what_the_smallest_plan_needs():
    step = coop_jax.remat_train_step(descent(distances), budget="5%", planner=QUICK)
    with pytest.raises(coop_jax.InfeasibleBudgetError) as caught:
        step.plan(*ARGS)
    smallest_bytes = caught.value.smallest_bytes
    assert smallest_bytes < expansion_bytes()
    step = coop_jax.remat_train_step(
        descent(distances), budget=smallest_bytes, planner=QUICK
    )
    assert step.plan(*ARGS).measured_bytes <= smallest_bytes


def expansion_bytes():
    graph = compiled_graph(traced(descent(distances), *ARGS))
    return max(graph.in_pool_bytes)
