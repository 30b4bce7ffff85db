"""Whatever JAX lowers to the equations of one jaxpr is these equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import custom_derivatives, lax
from steps import traced

import coop_jax
from coop_jax.base import _compat
from coop_jax.trace.calls import called_jaxpr

LAYERS, WIDTH = 8, 128


def rooted(weight, x):
    """A layer that is the root of an equation, as of implicit models."""

    def solve(residual, start):
        return lax.fori_loop(0, 6, lambda _, z: z - residual(z), start)

    def solve_tangent(linear, y):
        return lax.fori_loop(0, 6, lambda _, s: s - (linear(s) - y), y)

    def residual(z):
        return z - 0.3 * jnp.tanh(z @ weight) - x

    return jnp.sin(lax.custom_root(residual, x, solve, solve_tangent))


def solved(weight, x):
    """A layer that solves a linear system whose map has constants of its own."""
    matrix = jnp.eye(WIDTH) + 0.1 * jnp.tanh(weight)

    def solve(matvec, b):
        return lax.fori_loop(0, 6, lambda _, y: y - 0.5 * (matvec(y) - b), b)

    y = lax.custom_linear_solve(
        lambda v: v @ matrix, x, solve, transpose_solve=lambda vecmat, b: solve(vecmat, b)
    )
    return jnp.sin(y) + x


@jax.custom_batching.custom_vmap
def doubled(x):
    return jnp.sin(2 * x)


@doubled.def_vmap
def _(axis_size, in_batched, x):
    return doubled(x), in_batched[0]


@jax.custom_vjp
def doubled_with_gradient(x):
    return doubled(x)


# A function with a rule for batches has no gradient of its own.
doubled_with_gradient.defvjp(
    lambda x: (doubled(x), x), lambda x, g: (2 * g * doubled(x + jnp.pi / 4),)
)


def with_a_rule_for_batches(weight, x):
    return jnp.tanh(doubled_with_gradient(x @ weight)) + x


def _forward(x):
    return jnp.sin(x), jnp.cos(x)


remat_optimized = jax.custom_vjp(jnp.sin)
remat_optimized.defvjp(_forward, lambda cosine, g: (g * cosine,), optimize_remat=True)


def with_residuals_dropped(weight, x):
    return jnp.tanh(remat_optimized(x @ weight)) + x


def with_a_linear_call(weight, x):
    def scaled(weights, v):
        return v @ weights

    def transposed(weights, g):
        return g @ weights.T

    fixed = lax.stop_gradient(weight)
    scaled_x = custom_derivatives.linear_call(scaled, transposed, fixed, x)
    return jnp.tanh(scaled_x @ weight) + x


LAYERS_OF_CALLS = [
    rooted,
    solved,
    with_a_rule_for_batches,
    with_residuals_dropped,
    with_a_linear_call,
]


def step_of(layer):
    def step(weights, x):
        def loss(weights):
            h = x
            for weight in weights:
                h = layer(weight, h)
            return (h**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    return step


def arguments(batch=64):
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [0.08 * jax.random.normal(key, (WIDTH, WIDTH)) for key in keys[:-1]]
    return weights, jax.random.normal(keys[-1], (batch, WIDTH))


@pytest.mark.parametrize("layer", LAYERS_OF_CALLS)
def test_no_call_is_left_and_the_same_is_computed(layer):
    step, (weights, x) = step_of(layer), arguments()
    program = traced(step, weights, x).program
    assert not [eqn for eqn in program.eqns if called_jaxpr(eqn) is not None]
    got = _compat.jaxpr_as_fun(program.to_jaxpr())(*weights, x)
    for one, other in zip(got, jax.tree.leaves(jax.jit(step)(weights, x)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_call_left_alone_is_noticed():
    """`called_jaxpr` finds what the test above asserts is gone."""
    jaxpr = jax.make_jaxpr(step_of(with_a_rule_for_batches))(*arguments()).jaxpr
    assert any(called_jaxpr(eqn) is not None for eqn in jaxpr.eqns)


@pytest.mark.slow
@pytest.mark.hand
def test_layers_of_roots_fit_in_the_bytes_of_a_policy():
    """One operation, a solver needed at once what its iterations need in turn."""
    weights, x = arguments(batch=1024)
    by_policy = jax.jit(step_of(jax.checkpoint(rooted))).lower(weights, x).compile()
    figures = by_policy.memory_analysis()
    policy_bytes = (
        figures.argument_size_in_bytes
        + figures.output_size_in_bytes
        - figures.alias_size_in_bytes
        + figures.temp_size_in_bytes
    )
    fast = coop_jax.remat_train_step(step_of(rooted), budget=policy_bytes)
    assert fast.plan(weights, x).measured_bytes <= policy_bytes
    for one, other in zip(
        jax.tree.leaves(fast(weights, x)),
        jax.tree.leaves(jax.jit(step_of(rooted))(weights, x)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
