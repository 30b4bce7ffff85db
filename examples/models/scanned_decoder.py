"""Scanned decoder: a Llama-style language model whose layers are one `nnx.scan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike


@dataclasses.dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder and of its batch.

    Attributes:
        layers, width, hidden: of the residual stream and of the SwiGLU.
        heads, groups: of queries; of keys and values, which several heads share.
        vocabulary, batch, sequence: in tokens.
        dtype: of activations; weights are float32.
    """

    layers: int = 12
    width: int = 256
    hidden: int = 768
    heads: int = 4
    groups: int = 2
    vocabulary: int = 2048
    batch: int = 4
    sequence: int = 256
    dtype: DTypeLike = jnp.float32


class Attention(nnx.Module):
    """Causal attention with rotary positions; keys and values are shared by groups."""

    def __init__(self, sizes: DecoderSizes, rngs: nnx.Rngs):
        self.sizes = sizes
        each = sizes.width // sizes.heads
        self.query = _linear(sizes.width, sizes.width, sizes, rngs)
        self.key_value = _linear(sizes.width, 2 * sizes.groups * each, sizes, rngs)
        self.out = _linear(sizes.width, sizes.width, sizes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        each = width // self.sizes.heads
        query = self.query(x).reshape(batch, length, self.sizes.heads, each)
        shared = self.key_value(x).reshape(batch, length, 2 * self.sizes.groups, each)
        key, value = jnp.split(shared, 2, axis=2)
        y = jax.nn.dot_product_attention(
            _rotated(query), _rotated(key), value, is_causal=True
        )
        return self.out(y.reshape(batch, length, width))


class Layer(nnx.Module):
    """Attention and a SwiGLU, each behind an RMS norm."""

    def __init__(self, sizes: DecoderSizes, rngs: nnx.Rngs):
        self.before_attention = nnx.RMSNorm(sizes.width, dtype=sizes.dtype, rngs=rngs)
        self.attention = Attention(sizes, rngs)
        self.before_mlp = nnx.RMSNorm(sizes.width, dtype=sizes.dtype, rngs=rngs)
        self.gate = _linear(sizes.width, sizes.hidden, sizes, rngs)
        self.up = _linear(sizes.width, sizes.hidden, sizes, rngs)
        self.down = _linear(sizes.hidden, sizes.width, sizes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x))
        y = self.before_mlp(x)
        return x + self.down(nnx.silu(self.gate(y)) * self.up(y))


class Decoder(nnx.Module):
    """Tokens `[batch, sequence]` to logits `[batch, sequence, vocabulary]`.

    Arguments:
        sizes: the sizes.
        wrap: wraps the body of the scan, as `jax.checkpoint` does.
    """

    def __init__(self, sizes: DecoderSizes, rngs: nnx.Rngs, wrap: Callable = lambda f: f):
        self.embedding = nnx.Embed(
            sizes.vocabulary, sizes.width, dtype=sizes.dtype, rngs=rngs
        )

        @nnx.split_rngs(splits=sizes.layers)
        @nnx.vmap
        def make(rngs: nnx.Rngs) -> Layer:
            return Layer(sizes, rngs)

        self.layers = make(rngs)
        self.norm = nnx.RMSNorm(sizes.width, dtype=sizes.dtype, rngs=rngs)
        self.wrap = wrap

    def __call__(self, tokens: jax.Array) -> jax.Array:
        body = self.wrap(lambda x, layer: layer(x))
        x = nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
            self.embedding(tokens), self.layers
        )
        return self.embedding.attend(self.norm(x)).astype(jnp.float32)


def decoder_problem(
    sizes: DecoderSizes, policy: Callable | None = None, *, is_wrapped: bool = False
) -> tuple[Callable, tuple]:
    """A training step of a decoder, with its arguments.

    Arguments:
        sizes: the sizes.
        policy: of `jax.checkpoint` around a layer.
        is_wrapped: whether there is a `jax.checkpoint`; without a policy it saves nothing.

    Returns:
        `step(state, tokens) -> (state, loss)` and `(state, tokens)`; the state is to be
        donated.
    """

    def wrap(body: Callable) -> Callable:
        return nnx.remat(body, policy=policy) if is_wrapped else body

    model = Decoder(sizes, nnx.Rngs(0), wrap)
    graph, weights = nnx.split(model, nnx.Param)
    optimizer = optax.adam(1e-3)

    def loss_of(weights: nnx.State, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, weights)(tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(state: tuple, tokens: jax.Array) -> tuple[tuple, jax.Array]:
        weights, moments = state
        loss, grads = jax.value_and_grad(loss_of)(weights, tokens)
        updates, moments = optimizer.update(grads, moments, weights)
        return (optax.apply_updates(weights, updates), moments), loss

    shape = sizes.batch, sizes.sequence + 1
    tokens = jax.random.randint(jax.random.key(1), shape, 0, sizes.vocabulary)
    return step, ((weights, optimizer.init(weights)), tokens)


def _linear(size_in: int, size_out: int, sizes: DecoderSizes, rngs: nnx.Rngs):
    return nnx.Linear(size_in, size_out, use_bias=False, dtype=sizes.dtype, rngs=rngs)


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary position embeddings of `[batch, length, heads, size]`."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None, None] * rates
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate(
        [first * cos - second * sin, second * cos + first * sin], axis=-1
    )
