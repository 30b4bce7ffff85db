"""Scanned transformer: a GPT-2-style language model in plain JAX, its layers a `scan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a model and of its batch.

    Attributes:
        layers, width, heads: of the residual stream; the MLP is four times as wide.
        vocabulary, batch, sequence: in tokens.
    """

    layers: int = 16
    width: int = 256
    heads: int = 4
    vocabulary: int = 2048
    batch: int = 8
    sequence: int = 256


def scanned_transformer_problem(
    sizes: TransformerSizes, wrap: Callable[[Callable], Callable] = lambda layer: layer
) -> tuple[Callable, tuple]:
    """A training step with Adam, and its arguments.

    Arguments:
        sizes: the sizes.
        wrap: wraps a layer, as `jax.checkpoint` does.

    Returns:
        `step(state, tokens) -> (state, loss)` and `(state, tokens)`; the state is to be
        donated, and `tokens` are pairs of inputs and labels.
    """
    optimizer = optax.adam(1e-3)

    def layer(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
        return _layer(x, weights, sizes.heads)

    def loss_of(weights: dict[str, Any], tokens: tuple[jax.Array, jax.Array]) -> jax.Array:
        inputs, labels = tokens
        body = wrap(layer)
        x = weights["embedding"][inputs]
        x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, weights["layers"])
        logits = _normalized(x, weights["norm"]) @ weights["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state: tuple, tokens: tuple) -> tuple[tuple, jax.Array]:
        weights, moments = state
        loss, grads = jax.value_and_grad(loss_of)(weights, tokens)
        updates, moments = optimizer.update(grads, moments, weights)
        return (optax.apply_updates(weights, updates), moments), loss

    weights = _initial(sizes)
    shape = sizes.batch, sizes.sequence + 1
    tokens = jax.random.randint(jax.random.key(1), shape, 0, sizes.vocabulary)
    return step, ((weights, optimizer.init(weights)), (tokens[:, :-1], tokens[:, 1:]))


def _layer(x: jax.Array, weights: dict[str, jax.Array], heads: int) -> jax.Array:
    """Causal self-attention and a GELU MLP, each behind an RMS norm."""
    batch, length, width = x.shape

    def by_head(y: jax.Array) -> jax.Array:
        return y.reshape(batch, length, heads, width // heads).swapaxes(1, 2)

    y = _normalized(x, weights["gain_attention"])
    query, key, value = map(by_head, jnp.split(y @ weights["query_key_value"], 3, -1))
    scores = query @ key.swapaxes(2, 3) / (width // heads) ** 0.5
    is_before = jnp.tril(jnp.ones((length, length), bool))
    attention = jax.nn.softmax(jnp.where(is_before, scores, -1e9), axis=-1)
    x = x + (attention @ value).swapaxes(1, 2).reshape(x.shape) @ weights["out"]
    y = _normalized(x, weights["gain_mlp"])
    return x + jax.nn.gelu(y @ weights["to_hidden"]) @ weights["to_width"]


def _normalized(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain


def _initial(sizes: TransformerSizes) -> dict[str, Any]:
    # The order of names is that of the arguments. In another one XLA:CPU needs 8 MiB more
    # for a `jax.checkpoint` that saves nothing.
    width, layers = sizes.width, sizes.layers
    shapes = {
        "query_key_value": (layers, width, 3 * width),
        "out": (layers, width, width),
        "to_hidden": (layers, width, 4 * width),
        "to_width": (layers, 4 * width, width),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes) + 1)

    def drawn(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return 0.02 * jax.random.normal(key, shape)

    matrices = {
        name: drawn(key, shape)
        for key, (name, shape) in zip(keys[1:], shapes.items(), strict=True)
    }
    gains = {name: jnp.ones((layers, width)) for name in ("gain_attention", "gain_mlp")}
    return {
        "embedding": drawn(keys[0], (sizes.vocabulary, width)),
        "norm": jnp.ones(width),
        "layers": matrices | gains,
    }
