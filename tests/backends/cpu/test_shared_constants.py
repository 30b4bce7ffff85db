"""Constants whose arrays XLA:CPU must not share between segments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from steps import assert_trees_equal, largest_difference, planned_program, run, traced

import coop_jax
from coop_jax import backends
from coop_jax.backends.cpu.shared_constants import shared_constants
from coop_jax.base import _compat
from coop_jax.base._compat import Literal

LARGE, SMALL = jnp.ones((128, 64)), jnp.ones((8, 8))


def found_in(fn, x=LARGE):
    program = traced(fn, x).program
    return [program.eqns[index].primitive.name for index in shared_constants(program)]


def one():
    """A constant that JAX does not compute by itself."""
    return lax.mul(np.float32(1), np.float32(1))


def full(scalar):
    return lax.broadcast_in_dim(scalar, LARGE.shape, ())


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (lambda x: x * full(one() / 3.0), ["div", "mul"]),
        (lambda x: x + full(0.3 * one()), ["mul", "mul"]),
        (lambda x: x * full(one() / 4.0 / 3.0), ["div", "div", "mul"]),
        (lambda x: jax.grad(lambda x: 0.3 * jnp.mean(x * x))(x), ["div", "mul"]),
    ],
)
def test_what_is_computed_from_constants_passes_a_fence(fn, names):
    program = traced(fn, LARGE).program
    found = [program.eqns[index] for index in shared_constants(program)]
    assert sorted(eqn.primitive.name for eqn in found) == names
    assert all(not eqn.outvars[0].aval.shape for eqn in found)


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda x: jnp.maximum(x, 0.5), "max"),
        (lambda x: jnp.minimum(0.0, x), "min"),
        (lambda x: x + 3.0, "add"),
        (lambda x: 1.0 - x, "sub"),
        (lambda x: x * 0.25, "mul"),
        (lambda x: x / 8.0, "div"),
        (lambda x: x * 0.1, "mul"),
        (lambda x: x / 3.0, "div"),
    ],
)
def test_constants_that_pass_a_fence(fn, name):
    assert found_in(fn) == [name]
    assert found_in(fn, SMALL) == []


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: x * 0.1 * 0.3, id="XLA joins factors"),
        pytest.param(lambda x: (x * 0.1).T / 0.3, id="XLA joins a factor and a divisor"),
        pytest.param(lambda x: x * 0.1 * full(lax.sqrt(one())), id="XLA folds a factor"),
        pytest.param(lambda x: x * 0.0, id="zero"),
        pytest.param(lambda x: x / full(0.3 * one()), id="XLA divides by what it computes"),
        pytest.param(lambda x: x * full(one() / 3.0 / 7.0), id="XLA joins divisors"),
        pytest.param(lambda x: x * full(jnp.tanh(one())), id="other operations"),
        pytest.param(lambda x: 1.0 / x, id="no divisor"),
        pytest.param(lambda x: x**2.0, id="XLA multiplies"),
        pytest.param(lambda x: x.astype(jnp.int32) + 1, id="integers"),
        pytest.param(lambda x: x * x, id="no constant"),
    ],
)
def test_constants_that_stay_where_they_are(fn):
    assert found_in(fn) == []


def attention_step(weights, x, scale=4.0):
    """SGD step of 32 latent values that attend to `x` four times, with scaled scores."""

    def loss(weights):
        latent = jnp.ones((8, 32, 64))
        for of_queries, of_keys in weights:
            queries, keys = latent @ of_queries, x @ of_keys
            scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", queries, keys) / scale)
            latent = latent + jnp.einsum("bqk,bkd->bqd", scores, x)
            latent = latent + jax.nn.gelu(latent)
        return jnp.mean(latent**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def attention_arguments():
    keys = jax.random.split(jax.random.key(0), 4)
    weights = [(0.1 * jax.random.normal(key, (64, 64)),) * 2 for key in keys]
    return weights, jnp.ones((8, 512, 64))


def temporary_bytes(program, args):
    function = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))
    compiled = function.lower(*jax.tree.leaves(args)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def num_fenced_constants(program):
    fences = [eqn for eqn in program.eqns if eqn.primitive.name == "coop_fence"]
    assert fences
    return sum(isinstance(atom, Literal) for eqn in fences for atom in eqn.invars)


@pytest.mark.parametrize("scale", [4.0, 12**0.5])
def test_a_segment_has_its_own_constants(scale):
    args = attention_arguments()
    step = traced(functools.partial(attention_step, scale=scale), *args)
    on = planned_program(step, backends.named("cpu"), 0.5)
    off = planned_program(step, backends.without("cpu", "shared_constants"), 0.5)
    assert num_fenced_constants(off) == 0 < num_fenced_constants(on)
    assert_trees_equal(run(on, args), run(off, args))
    assert temporary_bytes(on, args) < 0.95 * temporary_bytes(off, args)


def test_a_plan_has_the_same_results():
    args = attention_arguments()
    step = coop_jax.remat_train_step(attention_step, budget="60%")
    plan = step.plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    written = jax.jit(attention_step)(*args)
    assert largest_difference(step(*args), written) < 1e-5
