"""Prices of operations that matrix units are of no use for."""

import jax
import jax.numpy as jnp
import pytest
from steps import traced

import coop_jax
from coop_jax import targets
from coop_jax.trace.costs import (
    RANDOM_BITS_OPERATIONS,
    seconds,
    seconds_again,
    sort_operations,
)

ROWS, WIDTH = 64, 512


def only_equation(name, function, *args):
    program = traced(function, *args).program
    (eqn,) = (eqn for eqn in program.eqns if eqn.primitive.name == name)
    return eqn


@pytest.mark.parametrize("target", targets.names())
def test_random_bits_and_sorts_take_the_rate_of_vectors(target):
    target = targets.named(target)
    key, x = jax.random.key(0), jnp.ones((ROWS, WIDTH))
    bits = only_equation("random_bits", lambda k: jax.random.bits(k, x.shape), key)
    operations = RANDOM_BITS_OPERATIONS * x.size
    assert seconds([bits], 0, 0, target) == operations / target.vector_rate
    assert seconds_again(bits, target) >= operations / target.vector_rate
    ordered = only_equation("sort", jnp.sort, x)
    operations = sort_operations(x.size, WIDTH)
    assert seconds([ordered], 0, 0, target) == operations / target.vector_rate


def dropped(weights, x, key):
    """Layers whose activations are masked."""

    def loss(weights):
        h = x
        for number, weight in enumerate(weights):
            bits = jax.random.bits(jax.random.fold_in(key, number), h.shape)
            h = h + jnp.where(bits > jnp.uint32(2**31), jnp.tanh(h @ weight), 0)
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def test_masks_are_kept_where_products_are_cheaper():
    """A product of 32 columns takes 64 operations an element; bits as long as 1,600."""
    weights = [jnp.ones((32, 32)) for _ in range(8)]
    step = coop_jax.remat_train_step(dropped, budget="75%", donate_argnums=0)
    plan = step.plan(weights, jnp.ones((4096, 32)), jax.random.key(0))
    again = {item.primitive for item in plan.recomputations}
    assert again
    assert not again & {"random_bits", "threefry2x32"}
