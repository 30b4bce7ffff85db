"""Loops: a recurrent network, a simulation and an accumulation, with gradients.

Each is `make(policy) -> (step, arguments)`: a step of gradient descent whose first argument
is to be donated. `policy` is of `jax.checkpoint` around the body of the loop; None: there
is none. With `group` the loop is nested by hand: a loop over groups of so many iterations,
with `jax.checkpoint` around the group as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Step = tuple[Callable, tuple]


def recurrent(
    policy: Any, length: int = 2000, width: int = 64, batch: int = 32, group: int = 1
) -> Step:
    """A gated recurrent network over many steps."""

    def cell(state: jax.Array, x: jax.Array, w: dict) -> jax.Array:
        gate = jax.nn.sigmoid(state @ w["gate"] + x)
        return gate * state + (1 - gate) * jnp.tanh(state @ w["state"] + x)

    def loss(w: dict, inputs: jax.Array) -> jax.Array:
        def body(state, x):
            return cell(state, x, w), None

        last = looped(body, jnp.zeros((batch, width)), inputs, policy, length, group)
        return jnp.mean(last**2)

    return descent(
        loss,
        {name: normal(width, width, seed=i) for i, name in enumerate(("gate", "state"))},
        normal(length, batch, width, seed=2),
    )


def simulation(policy: Any, length: int = 10_000, size: int = 4096, group: int = 1) -> Step:
    """A wave on a ring whose speed is fitted: a differentiable simulation."""

    def loss(speed: jax.Array, start: jax.Array) -> jax.Array:
        def body(state, _):
            height, rate = state
            bend = jnp.roll(height, 1) + jnp.roll(height, -1) - 2 * height
            rate = rate + 0.01 * jnp.tanh(speed) * jnp.sin(bend)
            return (height + 0.01 * rate, rate), None

        height, _ = looped(body, (start, start * 0), None, policy, length, group)
        return jnp.mean(height**2)

    return descent(loss, normal(size), normal(size, seed=1))


def accumulated(
    policy: Any,
    count: int = 8,
    layers: int = 12,
    width: int = 128,
    batch: int = 256,
    group: int = 1,
) -> Step:
    """Gradients of a scanned perceptron, accumulated over microbatches."""

    def loss(w: tuple, x: jax.Array) -> jax.Array:
        def body(x, w):
            return x + jax.nn.gelu(x @ w[0]) @ w[1], None

        return jnp.mean(looped(body, x, w, policy, layers, group) ** 2)

    def step(w: tuple, batches: jax.Array) -> tuple[tuple, jax.Array]:
        def micro(total, x):
            value, grads = jax.value_and_grad(loss)(w, x)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, w), batches)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, total), values.mean()

    # A fifth of the others' scale: with more, training diverges.
    w = normal(layers, width, 4 * width), normal(layers, 4 * width, width, seed=1)
    w = jax.tree.map(lambda w: 0.2 * w, w)
    return step, (w, normal(count, batch, width, seed=2))


def looped(
    body: Callable, init: Any, entries: Any, policy: Any, length: int, group: int
) -> Any:
    """What a loop carries at its end; `policy` and `group` as of this file."""
    wrapped = body if policy is None else jax.checkpoint(body, policy=policy)
    if group == 1:
        return jax.lax.scan(wrapped, init, entries, length=length)[0]

    @jax.checkpoint
    def one_group(carry: Any, entries: Any) -> tuple[Any, None]:
        return jax.lax.scan(wrapped, carry, entries, length=group)[0], None

    parted = jax.tree.map(lambda a: a.reshape(-1, group, *a.shape[1:]), entries)
    return jax.lax.scan(one_group, init, parted, length=length // group)[0]


def descent(loss: Callable, weights: Any, batch: jax.Array) -> Step:
    def step(weights, batch):
        value, grads = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step, (weights, batch)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return 0.1 * jax.random.normal(jax.random.key(seed), shape)
