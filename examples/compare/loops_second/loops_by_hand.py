"""Loops of plain JAX: custom gradients, chunks, microbatches, experts, two stacks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from compare.loops_second.training import (
    Step,
    adam,
    descent,
    half,
    layer_norm,
    normal,
    wrapped,
)
from jax import lax


@jax.custom_vjp
def swish(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(x)


def _swish_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return swish(x), x


def _swish_backward(x: jax.Array, given: jax.Array) -> tuple[jax.Array]:
    gate = jax.nn.sigmoid(x)
    return (given * gate * (1 + x * (1 - gate)),)


swish.defvjp(_swish_forward, _swish_backward)


def mlp(x: jax.Array, layer: Any) -> jax.Array:
    y = layer_norm(x, layer["scale"])
    return x + swish(y @ layer["up"]) @ layer["down"]


def mlp_weights(layers: int, width: int, seed: int = 0) -> dict[str, jax.Array]:
    return {
        "up": normal(layers, width, 4 * width, seed=seed),
        "down": normal(layers, 4 * width, width, seed=seed + 1),
        "scale": jnp.ones((layers, width)),
    }


def custom_gradient(policy: Any) -> Step:
    """`fori_loop` with static bounds that indexes stacked weights; a `custom_vjp`."""
    layers, width, batch = 12, 128, 512

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def body(i: jax.Array, x: jax.Array) -> jax.Array:
            layer = jax.tree.map(lambda leaf: leaf[i], params)
            return wrapped(mlp, policy)(x, layer)

        return jnp.mean(lax.fori_loop(0, layers, body, x) ** 2)

    return adam(loss, mlp_weights(layers, width), normal(batch, width, seed=7, scale=1.0))


def chunked_loss(policy: Any) -> Step:
    """Cross entropy by `lax.map` over chunks of positions, after scanned layers."""
    layers, width, positions, chunks, vocabulary = 6, 128, 1024, 8, 4096
    params = {"layers": mlp_weights(layers, width), "head": normal(width, vocabulary)}

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        body = wrapped(lambda x, layer: (mlp(x, layer), None), policy)
        x, _ = lax.scan(body, x, params["layers"])

        def chunk(inputs: Any) -> jax.Array:
            x, labels = inputs
            logits = jax.nn.log_softmax(x @ params["head"])
            return -jnp.take_along_axis(logits, labels[:, None], -1).sum()

        parts = x.reshape(chunks, -1, width), labels.reshape(chunks, -1)
        return lax.map(wrapped(chunk, policy), parts).sum() / positions

    labels = jax.random.randint(jax.random.key(5), (positions,), 0, vocabulary)
    return adam(loss, params, normal(positions, width, seed=7, scale=1.0), labels)


def microbatches(policy: Any) -> Step:
    """Gradients of microbatches added up in a scan; layers scanned with
    `jax.checkpoint` in the body as written."""
    layers, width, count, batch = 8, 128, 4, 256

    def loss(params: Any, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(
            lambda x, layer: (mlp(x, layer), None),
            policy=policy or jax.checkpoint_policies.dots_saveable,
        )
        return jnp.mean(lax.scan(body, x, params)[0] ** 2)

    def step(params: Any, batches: jax.Array) -> Any:
        def add(total: Any, x: jax.Array) -> Any:
            value, grads = jax.value_and_grad(loss)(params, x)
            return jax.tree.map(jnp.add, total, grads), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, values = lax.scan(add, zeros, batches)
        update = lambda p, g: p - 1e-2 / count * g  # noqa: E731
        return jax.tree.map(update, params, grads), values.mean()

    return step, (mlp_weights(layers, width), normal(count, batch, width, scale=1.0))


def experts(policy: Any) -> Step:
    """Scanned layers of 8 experts, two for each token, by dispatch with capacities."""
    layers, width, tokens, number, chosen, capacity = 6, 96, 512, 8, 2, 160
    params = {
        "router": normal(layers, width, number),
        "up": normal(layers, number, width, 2 * width, seed=1),
        "down": normal(layers, number, 2 * width, width, seed=2),
        "scale": jnp.ones((layers, width)),
    }

    def body(state: Any, layer: Any) -> Any:
        x, balance = state
        y = layer_norm(x, layer["scale"])
        shares = jax.nn.softmax(y @ layer["router"])
        weights, indices = lax.top_k(shares, chosen)
        picked = jax.nn.one_hot(indices, number)  # [token, choice, expert]
        flat = picked.reshape(-1, number)
        place = (jnp.cumsum(flat, 0) * flat - 1).reshape(picked.shape)
        slots = jax.nn.one_hot(place.astype(jnp.int32), capacity)
        dispatch = jnp.sum(slots, 1)  # [token, expert, slot]
        combine = jnp.einsum("tcen,tc->ten", slots, weights)
        y = jnp.einsum("ten,td->end", dispatch, y)
        y = jax.nn.gelu(jnp.einsum("end,edh->enh", y, layer["up"]))
        y = jnp.einsum("enh,ehd->end", y, layer["down"])
        x = x + jnp.einsum("ten,end->td", combine, y)
        balance += number * jnp.sum(shares.mean(0) * flat.mean(0))
        return (x, balance), None

    def loss(params: Any, x: jax.Array, target: jax.Array) -> jax.Array:
        (x, balance), _ = lax.scan(wrapped(body, policy), (x, 0.0), params)
        return jnp.mean((x - target) ** 2) + 0.01 * balance

    batch = normal(tokens, width, seed=7, scale=1.0), normal(tokens, width, seed=8)
    return adam(loss, params, *batch)


def two_stacks(policy: Any) -> Step:
    """A stack scanned with `unroll=2` and `_split_transpose`, two stacks a layer pair
    each scanned in reverse, a scan of one and one of no iterations; bfloat16."""
    layers, width, batch = 8, 128, 512
    params = {
        "first": mlp_weights(layers, width),
        "left": mlp_weights(layers // 2, width, 2),
        "right": mlp_weights(layers // 2, width, 4),
        "one": mlp_weights(1, width, 6),
        "none": mlp_weights(0, width, 8),
    }

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            return mlp(x, half(layer)), None

        def pair(x: jax.Array, layer: Any) -> tuple[jax.Array, jax.Array]:
            left, right = layer
            x = mlp(mlp(x, half(left)), half(right))
            return x, jnp.mean(jnp.square(x.astype(jnp.float32)))

        body, pair = wrapped(body, policy), wrapped(pair, policy)
        x = x.astype(jnp.bfloat16)
        x, _ = lax.scan(body, x, params["first"], unroll=2, _split_transpose=True)
        x, _ = lax.scan(body, x, params["none"])
        stacks = params["left"], params["right"]
        x, norms = lax.scan(pair, x, stacks, reverse=True)
        x, _ = lax.scan(body, x, params["one"])
        return jnp.mean(jnp.square(x.astype(jnp.float32))) + 1e-3 * norms.mean()

    return descent(loss, params, normal(batch, width, seed=9, scale=1.0))
