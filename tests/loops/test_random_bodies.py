"""Loops with random bodies, planned at random, have the bits of the loops as written."""

import random

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from loops.planned_at_random import assert_equal_bits, planned_at_random, traced
from random_programs import random_function
from scanned_steps import normal

from coop_jax.loops.pairs import find_pairs

LENGTH = 6
SEEDS = range(16)
OFTEN = 2  # The others take a minute together.


def bounded(x):
    """Values that neither grow from iteration to iteration nor are lost."""
    return x / (1 + jnp.abs(x).max())


def random_loop(seed):
    """A gradient through a loop whose body is drawn, and its arguments.

    The loop carries float32, bfloat16, int32, bool and key values and a buffer that is
    written in place; it reads a stack and writes one. Its body is a random function
    (`random_programs`), or a loop over one, and may have an effect, a checkpoint and a
    reversed order.
    """
    choose = random.Random(seed)
    inner, other = (
        random_function(seed + 1000 * i, choose.randint(4, 9))[0] for i in (1, 2)
    )
    is_nested, speaks = choose.random() < 0.4, choose.random() < 0.2
    wrap = choose.choice([lambda body: body, jax.checkpoint])
    is_reversed = choose.random() < 0.3

    def once(carry, x):
        floats, half, integers, flags, key, buffer, count = carry
        made = inner(floats + x, integers, flags, key)
        floats = bounded(made["f"][-1] + 0.5 * half.astype(jnp.float32))
        half = jnp.tanh(half * made["f"][0].astype(half.dtype))
        buffer = buffer.at[count % buffer.shape[0]].set(made["f"][-1])
        carry = floats, half, made["i"][-1], made["b"][-1], made["k"][-1], buffer, count + 1
        return carry, (made["f"][0], made["i"][0])

    def body(carry, x):
        if is_nested:
            carry, _ = lax.scan(once, carry, jnp.stack([x, 2 * x, x.T]))
        carry, written = once(carry, x)
        made = other(carry[0], carry[2], carry[3], carry[4])
        if speaks:
            jax.debug.callback(lambda _: None, carry[0].sum())
        return (bounded(made["f"][-1] + carry[0]), *carry[1:]), written

    def loss(params, integers, flags, key):
        start, stack = params
        buffer = jnp.zeros((3, 4, 4))
        half = start.astype(jnp.bfloat16)
        carry = start, half, integers, flags, key, buffer, jnp.int32(0)
        last, (floats, counts) = lax.scan(wrap(body), carry, stack, reverse=is_reversed)
        value = jnp.mean(last[0]) + jnp.mean(last[5] ** 2) + jnp.mean(jnp.sin(floats))
        return value + jnp.mean(last[1].astype(jnp.float32)), (last[2:5], counts)

    def step(params, *rest):
        (value, more), grads = jax.value_and_grad(loss, has_aux=True)(params, *rest)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value, more

    _, (_, integers, flags, key) = random_function(seed, 1)
    params = 5 * normal(4, 4), 5 * normal(LENGTH, 4, 4, seed=1)
    return step, (params, integers, flags, key)


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=() if s < OFTEN else pytest.mark.slow) for s in SEEDS]
)
def test_random_bodies_planned_at_random_have_equal_bits(seed):
    step, args = random_loop(seed)
    program = traced(step, args)
    assert find_pairs(program)
    for number in range(2):
        planned = planned_at_random(program, random.Random(number))
        assert_equal_bits(program, planned, args)
