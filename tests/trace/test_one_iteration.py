"""A `scan` of one iteration, which XLA takes apart, is part of the straight line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scanned_steps import accumulated, scanned
from steps import traced

from coop_jax import remat_train_step
from coop_jax.base import _compat


def names(program):
    return [eqn.primitive.name for eqn in program.eqns]


def carried_and_stacked(x, **options):
    def body(carry, entry):
        total, key = carry
        key, other = jax.random.split(key)
        noise = jax.random.normal(other, entry["x"].shape)
        return (total + entry["x"].sum(), key), (entry["x"] * noise, x, None, key)

    stacks = {"x": x[None], "keys": jax.random.split(jax.random.key(1), 1)}
    return lax.scan(body, (jnp.float32(0), jax.random.key(0)), stacks, **options)


def one_in_another(x):
    def body(x, w):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, w[None])

    def loss(w):
        return lax.scan(body, x, w)[0].sum()

    return jax.value_and_grad(loss)(jnp.stack([x, 2 * x, x]))


def passed_on(x):
    return lax.scan(lambda carry, entry: (entry, carry), x, x[None])


def without_entries(x):
    return lax.fori_loop(3, 4, lambda i, x: x * i + 1, x)


def in_a_branch(x):
    return lax.cond(x[0, 0] > 0, passed_on, lambda x: (x, x[None]), x)


@pytest.mark.parametrize(
    "function",
    [
        carried_and_stacked,
        functools.partial(carried_and_stacked, reverse=True),
        one_in_another,
        passed_on,
        without_entries,
        in_a_branch,
        lambda x: scanned(layers=1)[0](*scanned(layers=1)[1]),
    ],
)
def test_it_computes_the_same(function):
    x = jnp.linspace(-1, 1, 16).reshape(4, 4)
    program = traced(function, x).program
    loops = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    assert all(eqn.params["length"] > 1 for eqn in loops)
    got = _compat.jaxpr_as_fun(program.to_jaxpr())(x)
    wanted = jax.tree.leaves(jax.jit(function)(x))
    for one, other in zip(got, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = map(jax.random.key_data, (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_callbacks_of_it_speak_once_and_in_order():
    said = []

    def function(x):
        def body(x, _):
            jax.debug.callback(lambda v: said.append(float(v)), x, ordered=True)
            return x + 1, None

        x = lax.scan(body, x, None, length=1)[0]
        return lax.scan(body, x, None, length=1)[0]

    program = traced(function, jnp.float32(1)).program
    assert "scan" not in names(program)
    jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))(jnp.float32(1))
    jax.effects_barrier()
    assert said == [1, 2]


def test_accumulation_over_one_microbatch_is_planned_as_without():
    """Layers are unrolled, so all that can be planned is inside of that loop."""
    step, (weights, batches) = accumulated(count=1, unrolled=True)
    traced_step = traced(step, weights, batches)
    assert "scan" not in names(traced_step.program)
    planned = remat_train_step(step, budget="70%", donate_argnums=0)
    plan = planned.plan(weights, batches)
    assert plan.measured_bytes <= plan.budget_bytes
    expected = jax.jit(step)(weights, batches)
    got = planned(jax.tree.map(jnp.copy, weights), batches)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
