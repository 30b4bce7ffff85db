"""Equinox layers made by `filter_vmap` and scanned."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from compare.loops_second.training import Step, normal, wrapped
from jax import lax

LAYERS, WIDTH, HEADS, BATCH, LENGTH = 8, 128, 4, 8, 128


class Layer(eqx.Module):
    """Attention and an MLP with dropout, of one sequence."""

    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    norms: list[eqx.nn.LayerNorm]
    dropout: eqx.nn.Dropout

    def __init__(self, key: jax.Array):
        first, second = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=second)
        self.norms = [eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)]
        self.dropout = eqx.nn.Dropout(0.1)

    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        first, second = jax.random.split(key)
        y = jax.vmap(self.norms[0])(x)
        x = x + self.dropout(self.attention(y, y, y), key=first)
        y = jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
        return x + self.dropout(y, key=second)


def equinox_encoder(policy: Any) -> Step:
    """Layers' arrays are scanned, their static parts combined in the body."""
    layers = eqx.filter_vmap(Layer)(jax.random.split(jax.random.key(0), LAYERS))
    arrays, static = eqx.partition(layers, eqx.is_inexact_array)
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def loss(arrays: Any, x: jax.Array, target: jax.Array, key: jax.Array) -> jax.Array:
        def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            arrays, key = layer
            layer = eqx.combine(arrays, static)
            return jax.vmap(layer)(x, jax.random.split(key, BATCH)), None

        keys = jax.random.split(key, LAYERS)
        x, _ = lax.scan(wrapped(body, policy), x, (arrays, keys))
        return jnp.mean((x - target) ** 2)

    def step(state: Any, *batch: Any) -> Any:
        arrays, moments = state
        value, grads = eqx.filter_value_and_grad(loss)(arrays, *batch)
        updates, moments = optimizer.update(grads, moments)
        return (eqx.apply_updates(arrays, updates), moments), value

    shape = (BATCH, LENGTH, WIDTH)
    batch = normal(*shape, seed=1, scale=1.0), normal(*shape, seed=2, scale=1.0)
    return step, ((arrays, optimizer.init(arrays)), *batch, jax.random.key(3))
