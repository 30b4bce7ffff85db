"""Comparisons with what was selected are found, and selections run again before them."""

import jax
import jax.numpy as jnp
import pytest

from coop_jax.trace.ties import behind_selections, ties


def equations(function, *args):
    return jax.make_jaxpr(function)(*args).jaxpr.eqns


def largest(x):
    return x == x.max(1, keepdims=True)


def of_magnitudes(x):
    y = jnp.abs(x)
    return y == y.max()


def of_two(x):
    y = x * 2
    return x == jnp.maximum(x, y)


def scattered(x):
    largest = jnp.zeros(3, x.dtype).at[jnp.arange(12) % 3].max(x.reshape(-1))
    return largest[jnp.arange(12) % 3] == x.reshape(-1)


def gradient_of_max(x):
    return jax.grad(lambda x: (jnp.sin(x).max(0) ** 2).sum())(x)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "function",
    [largest, of_magnitudes, of_two, scattered, gradient_of_max],
)
def test_what_is_compared_with_what_it_was_selected_from_is_tied(function, dtype):
    eqns = equations(function, jnp.ones((3, 4), dtype))
    assert ties(eqns)
    for index in ties(eqns):
        assert eqns[index].primitive.name == "eq"


def with_a_constant(x):
    return jnp.sin(x) == 0.5


def of_integers(x):
    i = x.astype(jnp.int32)
    return i == i.max()


def of_others(x):
    return jnp.sin(x) == jnp.cos(x)


@pytest.mark.parametrize("function", [with_a_constant, of_integers, of_others])
def test_nothing_else_is_tied(function):
    assert not ties(equations(function, jnp.ones((3, 4))))


def test_the_selections_are_copies():
    eqns = equations(lambda x: ((y := jnp.sin(x)).max(), y == y.max()), jnp.ones(4))
    ((index, between),) = ties(eqns).items()
    *selecting, comparing = behind_selections(eqns, index, between)
    assert "reduce_max" in [eqn.primitive.name for eqn in selecting]
    made = {v for eqn in selecting for v in eqn.outvars}
    assert not made & {v for eqn in eqns for v in eqn.outvars}
    assert made & set(comparing.invars)
    assert comparing.outvars == eqns[index].outvars
