"""Prices of operations that matrix units are of no use for."""

import functools

import jax
import jax.numpy as jnp
import pytest
from steps import traced

import coop_jax
from coop_jax import targets
from coop_jax.trace.costs import (
    RANDOM_BITS_OPERATIONS,
    grouped_taps,
    seconds,
    seconds_again,
    sort_operations,
)
from coop_jax.xla.executable_seconds import executable_work

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


def convolved(groups, x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        *(x, kernel, (1, 1), "SAME"),
        dimension_numbers=numbers,
        feature_group_count=groups,
    )


@pytest.mark.parametrize("groups", [1, 2, 8, 32])
def test_grouped_convolutions_of_a_processor_take_its_time_for_every_tap(groups):
    """In a plan as in the price of an executable; elsewhere the rate of matrices."""
    x, kernel = jnp.ones((2, 16, 16, 32)), jnp.ones((3, 5, 32 // groups, 64))
    function = functools.partial(convolved, groups)
    conv = only_equation("conv_general_dilated", function, x, kernel)
    products = 2 * 2 * 16 * 16 * 64 * 15 * (32 // groups)
    taps = 2 * 16 * 16 * 64 * 15 if groups > 1 else 0
    assert grouped_taps(conv) == taps
    for name in targets.names():
        target = targets.named(name)
        dense = products / target.matrix_rate(4)
        expected = max(dense, taps * target.grouped_tap_seconds)
        assert seconds([conv], 0, 0, target) == expected
        assert (expected > dense) == (name == "cpu" and groups > 1)
    processor = targets.named("cpu")
    compiled = jax.jit(function).lower(x, kernel).compile()
    work = executable_work(compiled, processor)
    in_executable = work.seconds - processor.launch_seconds * work.launches
    # Products with padding do not count there.
    assert in_executable == pytest.approx(seconds([conv], 0, 0, processor), rel=0.2)


def depthwise(weights, x):
    """Blocks of a product, a convolution of each channel, and what needs its result."""

    def loss(weights):
        h = x
        for expand, kernel, shrink in weights:
            wide = convolved(96, jnp.tanh(h @ expand), kernel)
            h = h + jnp.tanh(wide) @ shrink
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def test_convolutions_of_each_channel_are_kept_where_products_are_cheaper():
    """3x3 of one channel takes as long as a product of 2,700 rows."""
    layer = jnp.ones((256, 96)), jnp.ones((3, 3, 1, 96)), jnp.ones((96, 256))
    step = coop_jax.remat_train_step(depthwise, budget="70%", donate_argnums=0)
    plan = step.plan([layer] * 6, jnp.ones((4, 16, 16, 256)))
    again = {item.primitive for item in plan.recomputations}
    assert "dot_general" in again
    assert "conv_general_dilated" not in again


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
