"""What JAX keeps whole until it lowers it, from 0.12 on, is a call of what that expands
to."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from steps import traced

from coop_jax.base import _compat
from coop_jax.trace.purity import may_merge, may_run_again


def searched(x, method="scan"):
    return jnp.searchsorted(jnp.sort(x[0]), x, method=method)


def searched_in_batches(x):
    return jax.vmap(jnp.searchsorted)(jnp.sort(x), x + 0.1)


def sampled(x):
    """A gradient through what was gathered, as of samples by importance."""

    def loss(x):
        numbers = jax.vmap(jnp.searchsorted)(jnp.cumsum(jnp.abs(x), -1), x)
        return jnp.sin(jnp.take_along_axis(x, jnp.clip(numbers, 0, 3), 1)).sum()

    return jax.value_and_grad(loss)(x)


def rooted(x):
    def root(a):
        def solve(f, start):
            return lax.fori_loop(0, 20, lambda _, y: y - f(y) / (2 * y), start)

        return lax.custom_root(lambda y: y * y - a, 1 + a, solve, lambda g, y: y / g(1.0))

    return jax.value_and_grad(lambda x: jax.vmap(root)(2 + jnp.abs(x[0])).sum())(x)


def found(x):
    return jnp.nonzero(x > 0, size=5)


def in_a_loop(x):
    return lax.scan(lambda x, _: (x + searched(x), searched_in_batches(x)), x, length=3)


@pytest.mark.parametrize(
    "function",
    [
        *(functools.partial(searched, method=m) for m in ("scan", "sort", "compare_all")),
        searched_in_batches,
        sampled,
        rooted,
        found,
        in_a_loop,
    ],
)
def test_it_computes_the_same_and_may_run_again(function):
    x = jnp.linspace(-1, 1, 16).reshape(4, 4)
    program = traced(function, x).program
    assert "call_hi_primitive" not in {eqn.primitive.name for eqn in program.eqns}
    assert all(may_run_again(eqn) and may_merge(eqn) for eqn in program.eqns)
    got = _compat.jaxpr_as_fun(program.to_jaxpr())(x)
    for one, other in zip(got, jax.tree.leaves(jax.jit(function)(x)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_equal_searches_are_one():
    def twice(x):
        return searched(x) + searched(x)

    once, both = (traced(f, jnp.ones((4, 4))).program for f in (searched, twice))
    assert len(both.eqns) == len(once.eqns) + 1


def test_its_equations_are_at_the_line_that_calls_it():
    program = traced(searched, jnp.ones((4, 4))).program
    for eqn in program.eqns:
        assert _compat.source_line(eqn).endswith("(searched)")
