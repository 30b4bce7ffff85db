"""Decoders whose layers Flax scans: `nnx.scan`, `nn.scan` and `nn.remat_scan`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.loops_second.training import Step, adam
from flax import linen as nn
from flax import nnx

LAYERS, WIDTH, HEADS, BATCH, LENGTH, VOCABULARY = 8, 128, 4, 8, 128, 512


def tokens() -> jax.Array:
    return jax.random.randint(jax.random.key(9), (BATCH, LENGTH + 1), 0, VOCABULARY)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), labels
    )
    return jnp.mean(losses)


class NnxLayer(nnx.Module):
    """Causal attention and a gated MLP, bfloat16 over float32 weights."""

    def __init__(self, rngs: nnx.Rngs):
        def dense(inner: int, outer: int) -> nnx.Linear:
            return nnx.Linear(inner, outer, use_bias=False, dtype=jnp.bfloat16, rngs=rngs)

        self.norms = nnx.Param(jnp.ones((2, WIDTH)))
        self.qkv, self.out = dense(WIDTH, 3 * WIDTH), dense(WIDTH, WIDTH)
        self.gate, self.up = dense(WIDTH, 3 * WIDTH), dense(WIDTH, 3 * WIDTH)
        self.down = dense(3 * WIDTH, WIDTH)

    def __call__(self, x: jax.Array) -> jax.Array:
        def normalized(x: jax.Array, scale: jax.Array) -> jax.Array:
            square = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
            return (x * jax.lax.rsqrt(square + 1e-6) * scale).astype(jnp.bfloat16)

        y = normalized(x, self.norms[0])
        q, k, v = jnp.split(self.qkv(y), 3, -1)
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        y = jax.nn.dot_product_attention(
            *(part.reshape(shape) for part in (q, k, v)), is_causal=True
        )
        x = x + self.out(y.reshape(x.shape))
        y = normalized(x, self.norms[1])
        return x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))


class NnxDecoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, policy: Any):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs: nnx.Rngs) -> NnxLayer:
            return NnxLayer(rngs)

        self.embedding = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.layers = stacked(rngs)
        self.policy = policy

    def __call__(self, tokens: jax.Array) -> jax.Array:
        def layer(x: jax.Array, layer: NnxLayer) -> jax.Array:
            return layer(x)

        if self.policy is not None:
            layer = nnx.remat(layer, policy=self.policy, prevent_cse=False)
        scan = nnx.scan(layer, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        x = scan(self.embedding(tokens).astype(jnp.bfloat16), self.layers)
        return self.embedding.attend(x)


def nnx_decoder(policy: Any) -> Step:
    """`nnx.scan` over layers, functional: the state is split from the graph."""
    model = NnxDecoder(nnx.Rngs(0), policy)
    graph, params = nnx.split(model)

    def loss(params: Any, tokens: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, params)(tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:])

    return adam(loss, params, tokens())


class LinenLayer(nn.Module):
    """Attention and an MLP with dropout."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dropout = nn.Dropout(0.1, deterministic=False)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        y = nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
        x = x + dropout(y)
        y = nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))
        return x + dropout(nn.Dense(WIDTH)(y))


class LinenBody(LinenLayer):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return LinenLayer()(x), None


class LinenDecoder(nn.Module):
    """`nn.scan`, or with `lengths` `nn.remat_scan`."""

    policy: Any = None
    lengths: tuple[int, ...] = ()

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedding = nn.Embed(VOCABULARY, WIDTH)
        x = embedding(tokens)
        if self.lengths:
            options = {} if self.policy is None else {"policy": self.policy}
            x = nn.remat_scan(
                LinenLayer,
                self.lengths,
                split_rngs={"params": True, "dropout": True},
                **options,
            )()(x)
        else:
            body = LinenBody
            if self.policy is not None:
                body = nn.remat(body, policy=self.policy, prevent_cse=False)
            x, _ = nn.scan(
                body,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=LAYERS,
            )(name="layers")(x, None)
        return embedding.attend(nn.LayerNorm()(x))


def _linen(model: LinenDecoder) -> Step:
    params = model.init(
        {"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens()[:, :-1]
    )

    def loss(params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens[:, :-1], rngs={"dropout": key})
        return cross_entropy(logits, tokens[:, 1:])

    return adam(loss, params, tokens(), jax.random.key(2))


def linen_decoder(policy: Any) -> Step:
    """`nn.scan` over layers with a dropout key each."""
    return _linen(LinenDecoder(policy))


def linen_remat_scan(policy: Any) -> Step:
    """`nn.remat_scan` over 4 x 4 layers, which remats as it is written."""
    return _linen(LinenDecoder(policy, (4, 4)))
