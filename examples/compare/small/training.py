"""A small training step: a loss, parameters and an Optax optimizer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Step:
    """A step whose first argument, its state, is donated."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]


def trained(loss: Callable[..., Any], params: Any, optimizer: Any, *batch: Any) -> Step:
    """The step `((params, state), *batch) -> (params, state), loss`."""

    def step(state: Any, *batch: Any) -> Any:
        params, optimizer_state = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        return (optax.apply_updates(params, updates), optimizer_state), value

    return Step(step, ((params, optimizer.init(params)), *batch))


def weights(seed: int, *shapes: Sequence[int], scale: float | None = None) -> list[Any]:
    """Normal matrices, by default of one over the root of their rows."""
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return [
        jax.random.normal(key, shape) * (scale or 1 / math.sqrt(shape[0]))
        for key, shape in zip(keys, shapes, strict=True)
    ]


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def integers(seed: int, most: int, *shape: int) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), shape, 0, most)


def mean_square(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((x - y) ** 2)


def normalised(x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Layer normalisation without weights."""
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + epsilon)


def perceptron(activation: Callable[..., Any], params: Sequence[Any], x: jax.Array) -> Any:
    """Products with an activation after all but the last."""
    for w in params[:-1]:
        x = activation(x @ w)
    return x @ params[-1]


def classified(logits: jax.Array, labels: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()
