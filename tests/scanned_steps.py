"""Small training steps with loops, in the ways in which they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

WIDTH, LAYERS, BATCH = 16, 6, 32
Step = tuple[Callable, tuple]


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return 0.2 * jax.random.normal(jax.random.key(seed + sum(shape)), shape)


def weights(layers: int = LAYERS) -> dict[str, jax.Array]:
    return {
        "up": normal(layers, WIDTH, 4 * WIDTH),
        "down": normal(layers, 4 * WIDTH, WIDTH),
    }


def layer(x: jax.Array, w: dict[str, jax.Array]) -> jax.Array:
    return x + jnp.tanh(jax.nn.gelu(x @ w["up"]) @ w["down"])


def descent(loss: Callable, params: Any, *batch: Any) -> Step:
    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step, (params, *batch)


def scanned(wrap: Callable = lambda body: body, layers: int = LAYERS, **options) -> Step:
    def loss(w, x):
        body = wrap(lambda x, w: (layer(x, w), None))
        return jnp.mean(lax.scan(body, x, w, **options)[0] ** 2)

    return descent(loss, weights(layers), normal(BATCH, WIDTH))


def behind_a_line(num_around: int = 4, rows: int = 16 * BATCH) -> Step:
    """A loop over layers, behind others that are no loop and cheap to make again."""

    def loss(params, x):
        around, stacked = params
        for w in around:
            x = x + jnp.tanh(jax.nn.gelu(x @ w["up"]) * 0.9) @ w["down"]
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, stacked)
        return jnp.mean(x**2)

    first = weights(num_around)
    around = [{name: w[i] for name, w in first.items()} for i in range(num_around)]
    return descent(loss, (around, weights()), normal(rows, WIDTH))


def half_precision() -> Step:
    """Products in bfloat16 over float32 weights, and a softmax in float32."""

    def loss(w, x):
        def body(x, w):
            half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), w | {"x": x})
            scores = jnp.matmul(half["x"], half["x"].T, preferred_element_type=jnp.float32)
            x += jax.nn.softmax(scores) @ x
            return x + jax.nn.silu(half["x"] @ half["up"]) @ half["down"], None

        return jnp.mean(lax.scan(body, x, w)[0] ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def read_results() -> Step:
    """The stacked results of the loop are read, too."""

    def loss(w, x):
        def body(x, w):
            x = layer(x, w)
            return x, jnp.sin(x)

        x, stacked = lax.scan(body, x, w)
        return jnp.mean(x**2) + jnp.mean(stacked**3)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def counted() -> Step:
    def loss(w, x):
        def body(i, x):
            return layer(x, jax.tree.map(lambda stack: stack[i], w))

        return jnp.mean(lax.fori_loop(0, LAYERS, body, x) ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def mapped() -> Step:
    def loss(w, x):
        first = jax.tree.map(lambda stack: stack[0], w)
        return jnp.mean(lax.map(lambda row: layer(row[None], first), x) ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def recurrent(length: int = 40) -> Step:
    def loss(w, inputs):
        def cell(state, x):
            state = jnp.tanh(state @ w["state"] + x @ w["input"])
            return state, state

        _, states = lax.scan(cell, jnp.zeros((BATCH, WIDTH)), inputs)
        return jnp.mean(states**2)

    w = {"state": normal(WIDTH, WIDTH), "input": normal(WIDTH, WIDTH, seed=1)}
    return descent(loss, w, normal(length, BATCH, WIDTH))


def dropout() -> Step:
    """A random key is carried."""

    def loss(w, x, key):
        def body(carry, w):
            x, key = carry
            key, now = jax.random.split(key)
            x = layer(x, w)
            kept = jax.random.bernoulli(now, 0.9, x.shape)
            return (jnp.where(kept, x / 0.9, 0.0), key), None

        return jnp.mean(lax.scan(body, (x, key), w)[0][0] ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH), jax.random.key(3))


def stacked_keys() -> Step:
    """Random keys are read from a stack and written to one."""

    def loss(w, x, key):
        def body(x, entry):
            w, key = entry
            x = layer(x, w)
            return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0.0), key

        x, keys = lax.scan(body, x, (w, jax.random.split(key, LAYERS)))
        return jnp.mean(x**2) + 0 * jax.random.normal(keys[0])

    return descent(loss, weights(), normal(BATCH, WIDTH), jax.random.key(3))


def nested() -> Step:
    def loss(w, x):
        def outer(x, w):
            return lax.scan(lambda x, _: (layer(x, w), None), x, None, length=3)

        return jnp.mean(lax.scan(outer, x, w)[0] ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def stacked_recurrent(
    layers: int = 3, length: int = 8, wrap: Callable = lambda body: body
) -> Step:
    """Gated layers over time in a scan over layers; sequences end at their lengths."""

    def loss(w, inputs, lengths):
        mask = jnp.arange(length)[:, None] < lengths

        def body(inputs, w):
            def cell(state, entry):
                x, is_inside = entry
                now = jnp.concatenate([x, state], -1) @ w
                now = jnp.tanh(now[:, :WIDTH]) * jax.nn.sigmoid(now[:, WIDTH:])
                state = jnp.where(is_inside[:, None], now, state)
                return state, state

            zeros = jnp.zeros(inputs.shape[1:])
            return inputs + lax.scan(wrap(cell), zeros, (jnp.sin(inputs), mask))[1], None

        return jnp.mean(lax.scan(wrap(body), inputs, w)[0] ** 2)

    w = normal(layers, 2 * WIDTH, 2 * WIDTH)
    return descent(loss, w, normal(length, BATCH, WIDTH), 1 + jnp.arange(BATCH) % length)


def nested_checkpoints(batch: int = BATCH) -> Step:
    """Three loops, one in the other, as `nn.remat_scan` writes them, of two iterations."""

    def loss(w, x):
        def inner(x, w):
            return lax.scan(lambda x, w: (layer(x, w), None), x, w)

        @jax.checkpoint
        def middle(x, w):
            return lax.scan(jax.checkpoint(inner), x, w)

        return jnp.mean(lax.scan(middle, x, w)[0] ** 2)

    def divided(stack):
        return stack.reshape(2, 2, 2, *stack.shape[1:])

    return descent(loss, jax.tree.map(divided, weights(8)), normal(batch, WIDTH))


def accumulated(count: int = 4, *, unrolled: bool = False) -> Step:
    """Gradients are accumulated over microbatches."""

    def loss(w, x):
        if unrolled:
            for k in range(LAYERS):
                x = layer(x, jax.tree.map(lambda w: w[k], w))  # noqa: B023
            return jnp.mean(x**2)
        return jnp.mean(lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)

    def step(w, batches):
        def micro(total, x):
            value, grads = jax.value_and_grad(loss)(w, x)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = lax.scan(micro, jax.tree.map(jnp.zeros_like, w), batches)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, total), values.mean()

    return step, (weights(), normal(count, BATCH, WIDTH))


def two_loops() -> Step:
    def loss(w, x):
        x = lax.scan(lambda x, w: (layer(x, w), None), x, w)[0]
        mean = x.mean(0)
        x = lax.scan(lambda x, w: (layer(x, w) + mean, None), x, w)[0]
        return jnp.mean(x**2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def branches() -> Step:
    def loss(w, x):
        def body(carry, w):
            x, i = carry
            return (lax.cond(i % 2 == 0, lambda x: layer(x, w), jnp.sin, x), i + 1), None

        return jnp.mean(lax.scan(body, (x, 0), w)[0][0] ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def talkative() -> Step:
    """Every iteration speaks to the host."""

    def loss(w, x):
        def body(x, w):
            x = layer(x, w)
            jax.debug.callback(lambda _: None, x.sum())
            return x, None

        return jnp.mean(lax.scan(body, x, w)[0] ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def twice_differentiated() -> Step:
    def loss(w, x):
        def energy(x):
            return jnp.mean(lax.scan(lambda x, w: (layer(x, w), None), x, w)[0] ** 2)

        return energy(x) + jnp.sum(jax.grad(energy)(x) ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


# By name: the step, and the number of its pairs of loops.
STEPS: dict[str, tuple[Callable[[], Step], int]] = {
    "scan": (scanned, 1),
    "checkpoint": (lambda: scanned(jax.checkpoint), 1),
    "reversed": (lambda: scanned(reverse=True), 1),
    "unrolled": (lambda: scanned(unroll=2), 1),
    "fully unrolled": (lambda: scanned(unroll=True), 0),
    "half precision": (half_precision, 1),
    "results read": (read_results, 1),
    "fori_loop": (counted, 1),
    "map": (mapped, 1),
    "recurrent": (recurrent, 1),
    "dropout": (dropout, 1),
    "stacked keys": (stacked_keys, 1),
    "nested": (nested, 1),
    "recurrent layers": (stacked_recurrent, 1),
    "nested checkpoints": (nested_checkpoints, 1),
    "accumulated": (accumulated, 1),
    "two loops": (two_loops, 2),
    "branches": (branches, 1),
    "callback": (talkative, 1),
    "second derivative": (twice_differentiated, 3),
    "one iteration": (lambda: scanned(layers=1), 0),
    "no iteration": (lambda: scanned(layers=0), 0),
}
