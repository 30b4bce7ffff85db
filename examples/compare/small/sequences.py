"""Small steps of sequences: attention, recurrences, state spaces, alignments."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.small.training import (
    Step,
    classified,
    integers,
    mean_square,
    normal,
    normalised,
    perceptron,
    trained,
    weights,
)

_WIDTH = 64


def state_space() -> Step:
    """Four selective state spaces by an associative scan, as in Mamba."""
    states = 8

    def joined(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def block(params: Any, x: Any) -> Any:
        value, gate = jnp.split(x @ params["in"], 2, -1)
        value = jax.nn.silu(value)
        into, out_of = jnp.split(value @ params["states"], 2, -1)
        size = jax.nn.softplus(value @ params["sizes"])
        decay = jnp.exp(-size[..., None] * jnp.exp(params["decay"]))
        added = (size * value)[..., None] * into[:, :, None]
        _, kept = jax.lax.associative_scan(joined, (decay, added), axis=1)
        y = jnp.einsum("bldn,bln->bld", kept, out_of)
        return x + (y * jax.nn.silu(gate)) @ params["out"]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params:
            x = block(layer, x)
        return mean_square(x, y)

    names = "in", "states", "sizes", "out"
    widths = 2 * _WIDTH, 2 * states, _WIDTH, _WIDTH
    params = [
        dict(zip(names, weights(i, *[(_WIDTH, w) for w in widths]), strict=True))
        | {"decay": 0.1 * normal(i, _WIDTH, states)}
        for i in range(4)
    ]
    batch = normal(1, 4, 256, _WIDTH), normal(2, 4, 256, _WIDTH)
    return trained(loss, params, optax.adamw(1e-3), *batch)


def linear_attention() -> Step:
    """Decaying sums of keys and values by a scan, as in RWKV."""

    def block(params: Any, x: Any) -> Any:
        *products, decay = params
        receptance = jax.nn.sigmoid(x @ products[0])
        keys, values = jnp.exp(jnp.minimum(x @ products[1], 3.0)), x @ products[2]
        kept = jnp.exp(-jnp.exp(decay))

        def body(sums: Any, pair: Any) -> Any:
            key, value = pair
            of_values, of_keys = kept * sums[0] + key * value, kept * sums[1] + key
            return (of_values, of_keys), of_values / (of_keys + 1e-6)

        zeros = jnp.zeros((x.shape[0], _WIDTH))
        pairs = keys.swapaxes(0, 1), values.swapaxes(0, 1)
        _, y = jax.lax.scan(body, (zeros, zeros), pairs)
        return x + (receptance * y.swapaxes(0, 1)) @ products[3]

    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params:
            x = block(layer, x)
        return mean_square(x, y)

    params = [[*weights(i, *[(_WIDTH, _WIDTH)] * 4), jnp.zeros(_WIDTH)] for i in range(3)]
    batch = normal(1, 8, 128, _WIDTH), normal(2, 8, 128, _WIDTH)
    return trained(loss, params, optax.adam(1e-3), *batch)


def fourier_mixing() -> Step:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for layer in params:
            x = normalised(x + jnp.fft.fft2(x).real)
            x = normalised(x + perceptron(jax.nn.gelu, layer, x))
        return mean_square(x, y)

    params = [weights(i, (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH)) for i in range(4)]
    batch = normal(1, 8, 128, _WIDTH), normal(2, 8, 128, _WIDTH)
    return trained(loss, params, optax.adamw(1e-3), *batch)


def alignment_free() -> Step:
    """The loss of connectionist temporal classification, which is a scan."""

    def loss(params: Any, x: Any, labels: Any) -> Any:
        logits = perceptron(jax.nn.relu, params, x)
        paddings = jnp.zeros(x.shape[:2]), jnp.zeros(labels.shape)
        return optax.ctc_loss(logits, paddings[0], labels, paddings[1]).mean()

    params = weights(0, (40, 128), (128, 128), (128, 30))
    batch = normal(1, 16, 100, 40), 1 + integers(2, 29, 16, 20)
    return trained(loss, params, optax.adam(1e-3), *batch)


def latent_attention() -> Step:
    """Few latent vectors attend to many inputs, as in the Perceiver."""

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], 4, 16)

    def attended(queries: Any, keys: Any, values: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / 4
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)

    def loss(params: Any, x: Any, y: Any) -> Any:
        z = jnp.broadcast_to(params["latent"], (x.shape[0], 32, _WIDTH))
        for q, k, v, out, *feed_forward in params["layers"]:
            found = attended(heads(z @ q), heads(x @ k), heads(x @ v))
            z = z + found.reshape(z.shape) @ out
            z = z + perceptron(jax.nn.gelu, feed_forward, z)
        return mean_square(z.mean(1), y)

    shapes = [*[(_WIDTH, _WIDTH)] * 4, (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH)]
    params = {
        "latent": normal(0, 32, _WIDTH),
        "layers": [weights(i, *shapes) for i in range(4)],
    }
    batch = normal(1, 8, 512, _WIDTH), normal(2, 8, _WIDTH)
    return trained(loss, params, optax.adamw(1e-3), *batch)


def dropped_transformer() -> Step:
    """Four causal layers with dropout of attention and of both residual branches."""
    length, batch_size = 128, 4
    mask = jnp.tril(jnp.ones((length, length), bool))

    def dropped(key: Any, x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)

    def attended(params: Any, x: Any, keys: Any) -> Any:
        parts = jnp.split(normalised(x) @ params[0], 3, -1)
        q, k, v = (part.reshape(batch_size, length, 4, 16) for part in parts)
        scores = jnp.where(mask, jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4, -1e9)
        scores = dropped(keys[0], jax.nn.softmax(scores))
        found = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape)
        return x + dropped(keys[1], found @ params[1])

    def loss(params: Any, x: Any, y: Any, key: Any) -> Any:
        for number, layer in enumerate(params):
            keys = jax.random.split(jax.random.fold_in(key, number), 3)
            x = attended(layer[:2], x, keys)
            x = x + dropped(keys[2], perceptron(jax.nn.gelu, layer[2:], normalised(x)))
        return mean_square(x, y)

    widths = 3 * _WIDTH, _WIDTH, 4 * _WIDTH
    shapes = [*[(_WIDTH, width) for width in widths], (4 * _WIDTH, _WIDTH)]
    params = [weights(i, *shapes) for i in range(4)]
    data = normal(1, batch_size, length, _WIDTH), normal(2, batch_size, length, _WIDTH)
    return trained(loss, params, optax.adamw(1e-3), *data, jax.random.key(9))


def translation() -> Step:
    """An LSTM reads, another one writes and attends to what was read."""
    length, batch_size, words = 64, 16, 100

    def cell(params: Any, carry: Any, x: Any) -> Any:
        hidden, state = carry
        gates = jnp.split(x @ params[0] + hidden @ params[1], 4, -1)
        enters, leaves, shows = (jax.nn.sigmoid(gates[i]) for i in (0, 1, 3))
        state = leaves * state + enters * jnp.tanh(gates[2])
        hidden = shows * jnp.tanh(state)
        return (hidden, state), hidden

    def loss(params: Any, source: Any, target: Any) -> Any:
        zeros = (jnp.zeros((batch_size, _WIDTH)),) * 2
        embedded = params["words"]
        reads = functools.partial(cell, params["reader"])
        carry, read = jax.lax.scan(reads, zeros, embedded[source].swapaxes(0, 1))

        def writes(carry: Any, x: Any) -> Any:
            carry, hidden = cell(params["writer"], carry, x)
            scores = jax.nn.softmax(jnp.einsum("bd,lbd->bl", hidden, read))
            return carry, hidden + jnp.einsum("bl,lbd->bd", scores, read)

        _, written = jax.lax.scan(writes, carry, embedded[target].swapaxes(0, 1))
        return classified(written[:-1] @ params["out"], target.swapaxes(0, 1)[1:])

    shapes = [(_WIDTH, 4 * _WIDTH)] * 2
    params = {
        "reader": weights(0, *shapes),
        "writer": weights(1, *shapes),
        "out": weights(2, (_WIDTH, words))[0],
        "words": normal(3, words, _WIDTH),
    }
    data = (integers(seed, words, batch_size, length) for seed in (4, 5))
    return trained(loss, params, optax.adam(1e-3), *data)
