"""A mixture-of-experts decoder: tokens are sent to two of eight MLPs each.

Routing of Lepikhin et al., "GShard", 2021: the two most likely experts, a capacity per
expert and group of tokens (here a sequence), einsum dispatch, a loss that balances the
load. The rest as in Jiang et al., "Mixtral of Experts", 2024: RMS normalization, rotary
positions, gated experts. Products in bfloat16 (float32 on CPU), AdamW after clipping.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.second.attention import Attention
from compare.second.gradient_step import gradient_step
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 3e-4
CHOICES = 2  # experts per token
CAPACITY_FACTOR = 1.25
BALANCE = 0.01  # weight of the balancing loss


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 8
    sequence: int = 1024
    vocabulary: int = 32000
    width: int = 1024
    hidden: int = 2048
    layers: int = 4
    heads: int = 16
    experts: int = 8
    dtype: Any = jnp.bfloat16


def route(probabilities: jax.Array, capacity: int) -> jax.Array:
    """Weights `[group, token, expert, slot]` of tokens in the experts' slots.

    First choices are seated before second ones; a choice without a free slot is dropped.
    """
    groups, length, experts = probabilities.shape
    weights, chosen = jax.lax.top_k(probabilities, CHOICES)
    weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
    is_chosen = jax.nn.one_hot(chosen, experts)
    in_turn = is_chosen.swapaxes(1, 2).reshape(groups, CHOICES * length, experts)
    before = jnp.cumsum(in_turn, axis=1) - in_turn
    before = before.reshape(groups, CHOICES, length, experts).swapaxes(1, 2)
    slot = jnp.sum(before * is_chosen, axis=-1).astype(jnp.int32)
    in_slot = jax.nn.one_hot(slot, capacity)  # no one where the expert is full
    return jnp.einsum("gtk,gtke,gtkc->gtec", weights, is_chosen, in_slot)


class Experts(nn.Module):
    """Gated MLPs, and the router; returns the balancing loss beside the output."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        sizes, dtype = self.sizes, self.sizes.dtype
        router = nn.Dense(sizes.experts, use_bias=False, name="router")
        probabilities = jax.nn.softmax(router(x.astype(jnp.float32)))
        share = CAPACITY_FACTOR * CHOICES * x.shape[1] / sizes.experts
        combine = route(probabilities, math.ceil(share))
        dispatch = (combine > 0).astype(dtype)
        first = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), sizes.experts)
        load = jnp.mean(first, axis=1) * jnp.mean(probabilities, axis=1)

        def weights(name, inputs, outputs):
            init = nn.initializers.lecun_normal(batch_axis=0)
            shape = (sizes.experts, inputs, outputs)
            return self.param(name, init, shape).astype(dtype)

        inputs = jnp.einsum("gtec,gtm->egcm", dispatch, x.astype(dtype))
        gate = weights("wi_0", sizes.width, sizes.hidden)
        gate = checkpoint_name(jnp.einsum("egcm,emh->egch", inputs, gate), "mlpwi_0")
        y = weights("wi_1", sizes.width, sizes.hidden)
        y = checkpoint_name(jnp.einsum("egcm,emh->egch", inputs, y), "mlpwi_1")
        y = jax.nn.silu(gate) * y
        out = weights("wo", sizes.hidden, sizes.width)
        y = checkpoint_name(jnp.einsum("egch,ehm->egcm", y, out), "mlpwo")
        y = jnp.einsum("gtec,egcm->gtm", combine.astype(dtype), y)
        return y, sizes.experts * jnp.mean(jnp.sum(load, axis=-1))


class Layer(nn.Module):
    """Causal self-attention and the experts, each pre-normalized and added."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = nn.RMSNorm(dtype=self.sizes.dtype, name="attention_norm")(x)
        attention = Attention(self.sizes.heads, self.sizes.dtype, rotary=True)
        x = x + attention(y, mask=mask)
        y = nn.RMSNorm(dtype=self.sizes.dtype, name="mlp_norm")(x)
        y, balance = Experts(self.sizes, name="experts")(y)
        return x + y, balance


class Decoder(nn.Module):
    """Tokens to logits of their successors, and the mean balancing loss."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        sizes = self.sizes
        x = nn.Embed(sizes.vocabulary, sizes.width, dtype=sizes.dtype)(tokens)
        mask = nn.make_causal_mask(tokens, dtype=bool)
        layer = self.wrap(Layer, remat=nn.remat)
        balances = []
        for number in range(sizes.layers):
            x, balance = layer(sizes, name=f"layer_{number}")(x, mask)
            balances.append(balance)
        x = nn.RMSNorm(dtype=sizes.dtype, name="norm")(x)
        head = nn.Dense(sizes.vocabulary, use_bias=False, dtype=sizes.dtype, name="head")
        return head(x).astype(jnp.float32), sum(balances) / len(balances)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Next-token cross-entropy and the balancing loss; AdamW."""
    sizes = sizes or Sizes()
    model = Decoder(sizes, wrap)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, b2=0.95)
    )

    def make_args(key):
        param_key, token_key = jax.random.split(key)
        tokens = batches.tokens(
            token_key, sizes.batch, sizes.sequence + 1, sizes.vocabulary
        )
        params = model.init(param_key, tokens[:, :-1])["params"]
        return TrainState(params, (), optimizer.init(params)), {"tokens": tokens}

    def step(state, batch):
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_of(params):
            logits, balance = model.apply({"params": params}, inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return losses.mean() + BALANCE * balance, ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("moe", scale, step, make_args)
