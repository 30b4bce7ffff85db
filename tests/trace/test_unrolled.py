"""A `scan` that is no loop for XLA, of one iteration or unrolled, is part of the straight
line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scanned_steps import LAYERS, accumulated, descent, layer, normal, scanned
from steps import QUICK, traced

from coop_jax import remat_train_step
from coop_jax.base import _compat
from coop_jax.xla.memory_figures import memory_figures

KEY = jax.random.key(0)


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


def unrolled(x, *, reverse=False, **options):
    """Keys, results without entries, and a gradient that reads what was stacked."""

    def body(carry, entry):
        total, key = carry
        key, other = jax.random.split(key)
        noise = jax.random.normal(other, entry["x"].shape)
        total = jnp.tanh(total @ entry["x"] / 4) + noise / 8
        return (total, key), (total.sum(), None, key, 0.5)

    def loss(x):
        stacks = {"x": jnp.stack([x, x.T, 2 * x]), "keys": jax.random.split(KEY, 3)}
        carried, stacked = lax.scan(body, (x, KEY), stacks, reverse=reverse, **options)
        return carried[0].sum() + stacked[0][::-1] @ stacked[3], stacked[2]

    return jax.value_and_grad(loss, has_aux=True)(x)


def unrolled_in_a_loop(x):
    inner = functools.partial(unrolled, unroll=True)
    return lax.scan(lambda x, _: (inner(x)[1], inner(x)[0][0]), x, None, length=3)


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
        functools.partial(unrolled, unroll=True),
        functools.partial(unrolled, unroll=2),
        functools.partial(unrolled, unroll=5, reverse=True),
        unrolled_in_a_loop,
        lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) + i, x, unroll=True),
        lambda x: scanned(layers=1)[0](*scanned(layers=1)[1]),
    ],
)
def test_it_computes_the_same(function):
    x = jnp.linspace(-1, 1, 16).reshape(4, 4)
    program = traced(function, x).program
    loops = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    assert all(eqn.params["length"] // eqn.params["unroll"] > 1 for eqn in loops)
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


@pytest.mark.parametrize("unroll", [LAYERS // 2 + 1, LAYERS, True])
def test_an_unrolled_loop_is_that_of_python(unroll):
    """What is stacked for the gradient is passed on: only the gradients are a stack."""

    def plain(w, x):
        for k in range(LAYERS):
            x = layer(x, jax.tree.map(lambda stack: stack[k], w))  # noqa: B023
        return jnp.mean(x**2)

    step, (w, x) = scanned(unroll=unroll)
    program, wanted = traced(step, w, x).program, traced(descent(plain, w)[0], w, x).program
    for name in ("dot_general", "tanh"):
        assert names(program).count(name) == names(wanted).count(name) > 0
    assert names(program).count("concatenate") == len(w)


@pytest.mark.parametrize("unroll", [LAYERS // 2 + 1, True])
def test_an_unrolled_loop_fits_in_the_bytes_of_a_policy(unroll):
    kept = functools.partial(
        jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable
    )

    def step_of(wrap):
        def loss(w, x):
            body = wrap(lambda x, w: (x + jax.nn.gelu(x @ w), None))
            return jnp.mean(lax.scan(body, x, w, unroll=unroll)[0] ** 2)

        return descent(loss, normal(LAYERS, 64, 64), normal(1024, 64))

    step, args = step_of(kept)
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    by_hand = jax.jit(step, donate_argnums=0, compiler_options=options)
    budget = memory_figures(by_hand.lower(*args).compile()).total_bytes
    step, args = step_of(lambda body: body)
    planned = remat_train_step(step, budget=budget, donate_argnums=0, planner=QUICK)
    plan = planned.plan(*args)
    assert plan.measured_bytes <= budget < 0.7 * plan.unmodified_bytes


@pytest.mark.slow
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
