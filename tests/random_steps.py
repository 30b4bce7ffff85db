"""Random small training steps: layers, optimizers and donation as they come."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def random_step(seed: int) -> tuple[Callable, tuple, dict[str, Any]]:
    """A step `(state, batch) -> ...`, arguments for it, and options of `jax.jit`."""
    choose, numbers = random.Random(seed), np.random.default_rng(seed)
    kind = list(_LAYERS)[seed % len(_LAYERS)]
    make_weights, layer = _LAYERS[kind]
    num_layers = choose.randint(1, 2 if kind == "attention" else 3)
    width = choose.choice([16, 32, 64])
    shape = (choose.choice([2, 8]), choose.choice([4, 32, 64]), width)

    def normal(*shape):
        return jnp.asarray(numbers.normal(size=shape) * shape[-1] ** -0.5, jnp.float32)

    weights = [make_weights(normal, width) for _ in range(num_layers)]
    batch = normal(*shape)
    is_scanned = choose.random() < 0.2
    if is_scanned:
        weights = jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)

    def loss(weights, x):
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        else:
            for w in weights:
                x = layer(x, w)
        return jnp.mean(x**2)

    options = {"donate_argnums": 0} if choose.random() < 0.5 else {}
    optimizer = choose.choice(list(_OPTIMIZERS))
    return _OPTIMIZERS[optimizer](loss), (_STATES[optimizer](weights), batch), options


def _attention(x, w):
    query, key, value, out = (x @ m for m in w)
    scores = jax.nn.softmax(jnp.einsum("bid,bjd->bij", query, key))
    return x + scores @ value * out


_LAYERS: dict[str, tuple[Callable, Callable]] = {
    "residual": (
        lambda normal, d: normal(d, d),
        lambda x, w: x + jnp.tanh(x @ w),
    ),
    "gelu": (
        lambda normal, d: (normal(d, 4 * d), normal(4 * d, d)),
        lambda x, w: x + jax.nn.gelu(x @ w[0], approximate=False) @ w[1],
    ),
    "normalized": (
        lambda normal, d: normal(d, d),
        lambda x, w: x + jnp.sin((x - x.mean(-1, keepdims=True)) / (x.std() + 1) @ w),
    ),
    "attention": (
        lambda normal, d: tuple(normal(d, d) for _ in range(4)),
        _attention,
    ),
}


def _descent(loss):
    def step(weights, batch):
        value, grads = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


def _momentum(loss):
    def step(state, batch):
        weights, momentum = state
        value, grads = jax.value_and_grad(loss)(weights, batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return (weights, momentum), value

    return step


_OPTIMIZERS = {"descent": _descent, "momentum": _momentum, "gradients": jax.value_and_grad}
_STATES = {
    "descent": lambda weights: weights,
    "momentum": lambda weights: (weights, jax.tree.map(jnp.zeros_like, weights)),
    "gradients": lambda weights: weights,
}
