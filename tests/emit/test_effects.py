"""Plans keep to what may run again: effects happen as often and in the order as written."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from random_programs import random_schedule
from steps import QUICK, TARGET, assert_trees_equal, mlp_arguments, mlp_step, run, traced

import coop_jax
from coop_jax import _ext
from coop_jax.base import _compat
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules


def evicted_everywhere(step, arguments, seed=0):
    """The step with everything recomputed that may be."""
    made = traced(step, *arguments)
    graph = build_graph(made.program, from_rules(made.program), TARGET)
    schedule = random_schedule(graph, seed, eviction_rate=1.0)
    assert _ext.validate(graph.core, schedule) == []
    assert (schedule.steps[:, 0] == _ext.Schedule.RECOMPUTE).any()
    return rewrite(graph, cut(graph, schedule, fence_free_inputs=bool(seed % 2)))


def noisy_step(weights, x):
    def loss(weights):
        hidden = x
        for w in weights:
            keep = lax.rng_uniform(0.0, 1.0, hidden.shape) < 0.5
            hidden = hidden + jnp.tanh(hidden @ w) * keep
        return jnp.mean(hidden**2)

    return jax.grad(loss)(weights)


def test_numbers_are_drawn_as_often_as_written():
    arguments = mlp_arguments(layers=4)
    program = evicted_everywhere(noisy_step, arguments)
    assert sum(eqn.primitive.name == "rng_uniform" for eqn in program.eqns) == 4

    planned = coop_jax.remat_train_step(noisy_step, budget="85%", planner=QUICK)
    assert not planned.plan(*arguments).is_unmodified

    def num_draws(step):
        text = step.lower(*arguments).compile().as_text()
        return text.count(" rng-get-and-update-state(")

    assert num_draws(planned) == num_draws(jax.jit(noisy_step)) == 4


def test_a_mask_is_the_same_forwards_and_backwards():
    """Drawn anew it would be another one."""

    def step(weights, x):
        def loss(weights):
            total, hidden = 0.0, x
            for w in weights:
                keep = lax.rng_uniform(0.0, 1.0, hidden.shape) < 0.5
                hidden = jnp.where(keep, hidden * w[0, 0], 0)
                total += hidden.sum()
            return total

        value, gradients = jax.value_and_grad(loss)(weights)
        # Linear in each first weight: what they say of the value has to agree.
        return value, gradients[0][0, 0] * weights[0][0, 0]

    arguments = mlp_arguments(layers=3)
    program = evicted_everywhere(step, arguments)
    value, same = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))(
        *jax.tree.leaves(arguments)
    )
    np.testing.assert_allclose(value, same, rtol=1e-4)


def recorded_step(weights, x):
    """References are read and written in between."""
    record = jax.new_ref(jnp.zeros(4))
    record[0] = x.sum()
    new_weights, value = mlp_step(weights, x)
    first = record[...]
    record[1] = value + first[0]
    record[2] = new_weights[0].sum() + record[1]
    jax.ref.addupdate(record, 2, 1.0)
    lax.fori_loop(0, 3, lambda i, _: record.__setitem__(3, record[3] + i), None)
    return new_weights, value, first, jax.ref.freeze(record)


def test_references_keep_their_order():
    arguments = mlp_arguments()
    expected = jax.jit(recorded_step)(*arguments)
    for seed in range(3):
        program = evicted_everywhere(recorded_step, arguments, seed)
        found = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))(
            *jax.tree.leaves(arguments)
        )
        for a, b in zip(found, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_argument", [False, True])
def test_references_from_outside_are_written_once_a_step(is_argument):
    weights, x = mlp_arguments()
    counter = jax.new_ref(jnp.zeros(()))

    def step(weights, x, *references):
        [reference] = references or [counter]
        reference[...] = 2 * reference[...] + 1
        return mlp_step(weights, x)

    arguments = (weights, x, counter) if is_argument else (weights, x)
    planned = coop_jax.remat_train_step(step, budget="80%", planner=QUICK)
    assert not planned.plan(*arguments).is_unmodified
    for expected in (1, 3, 7):
        planned(*arguments)
        assert float(counter[...]) == expected


def test_tokens_go_around_fences():
    def step(weights, x):
        token = lax.create_token()
        results = mlp_step(weights, x)
        return results, lax.after_all(token) is None

    arguments = mlp_arguments()
    planned = coop_jax.remat_train_step(step, budget="80%", planner=QUICK)
    assert not planned.plan(*arguments).is_unmodified
    for a, b in zip(
        jax.tree.leaves(planned(*arguments)),
        jax.tree.leaves(jax.jit(step)(*arguments)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_kernel_is_recomputed():
    """Its body reads and writes references, its call has no effects."""

    def step(weights, x):
        def body(x_ref, y_ref):
            y_ref[...] = x_ref[...] * 2

        twice = pl.pallas_call(body, out_shape=jax.typeof(x), interpret=True)
        hidden = twice(x)
        first = jnp.tanh(hidden @ weights[0])
        return hidden.sum(), (first @ weights[1]).sum(), (hidden.T @ first).sum()

    arguments = mlp_arguments(layers=2)
    program = evicted_everywhere(step, arguments)
    assert sum(eqn.primitive.name == "pallas_call" for eqn in program.eqns) > 1
    expected = run(traced(step, *arguments).program, arguments)
    assert_trees_equal(run(program, arguments), expected)
