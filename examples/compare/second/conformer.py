"""Conformer: a speech encoder of convolutions and attention, trained with CTC.

Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition",
2020: two strided convolutions, then blocks of half an MLP, self-attention, a convolution
module with batch normalization, and the other half; dropout 0.1. Positions are rotary.
AdamW with Noam's learning rate.
"""

from __future__ import annotations

import dataclasses
import functools

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

PEAK = 1e-3  # learning rate
WARMUP = 10_000
MELS = 80
Dropout = functools.partial(nn.Dropout, 0.1, deterministic=False)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 16
    frames: int = 1600
    labels: int = 64
    vocabulary: int = 1024
    width: int = 512
    layers: int = 4
    heads: int = 8
    kernel: int = 31


class HalfMLP(nn.Module):
    """Half of what an MLP adds, pre-normalized."""

    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(4 * self.width, name="mlp_in")(nn.LayerNorm(name="norm")(x))
        y = Dropout()(nn.swish(checkpoint_name(y, "mlpwi")))
        y = checkpoint_name(nn.Dense(self.width, name="mlp_out")(y), "mlpwo")
        return x + 0.5 * Dropout()(y)


class Convolution(nn.Module):
    """A gated linear unit, a depthwise convolution over time, and a product."""

    width: int
    kernel: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.Dense(2 * self.width, name="gated")(nn.LayerNorm(name="norm")(x))
        y = nn.Conv(
            self.width, (self.kernel,), feature_group_count=self.width, name="depthwise"
        )(nn.glu(y))
        y = nn.BatchNorm(use_running_average=False, momentum=0.9, name="batch_norm")(y)
        y = nn.Dense(self.width, name="out")(nn.swish(y))
        return x + Dropout()(y)


class Block(nn.Module):
    """Half an MLP, attention, convolution, half an MLP."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        sizes = self.sizes
        x = HalfMLP(sizes.width, name="first")(x)
        y = nn.LayerNorm(name="attention_norm")(x)
        attention = Attention(sizes.heads, rotary=True, use_bias=True, name="attention")
        x = x + Dropout()(attention(y))
        x = Convolution(sizes.width, sizes.kernel, name="convolution")(x)
        x = HalfMLP(sizes.width, name="second")(x)
        return nn.LayerNorm(name="norm")(x)


class Conformer(nn.Module):
    """Spectrograms `[batch, frames, MELS]` to logits, one of four frames each."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, spectrograms: jax.Array) -> jax.Array:
        sizes = self.sizes
        x = spectrograms[..., None]
        for number in range(2):
            convolve = nn.Conv(sizes.width, (3, 3), (2, 2), name=f"subsample_{number}")
            x = nn.relu(convolve(x))
        x = nn.Dense(sizes.width, name="input")(x.reshape(*x.shape[:2], -1))
        x = Dropout()(x)
        block = self.wrap(Block, remat=nn.remat)
        for number in range(sizes.layers):
            x = block(sizes, name=f"block_{number}")(x)
        return nn.Dense(sizes.vocabulary, name="head")(x)


def noam(count: jax.Array) -> jax.Array:
    """A rate that rises linearly and falls with the root of the number of steps."""
    count = count + 1
    return PEAK * jnp.minimum(count / WARMUP, jnp.sqrt(WARMUP / count))


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Connectionist temporal classification (CTC); AdamW."""
    sizes = sizes or Sizes()
    model = Conformer(sizes, wrap)
    optimizer = optax.adamw(noam, b2=0.98, weight_decay=1e-6)

    def make_args(key):
        param_key, audio_key, label_key, drop_key = jax.random.split(key, 4)
        shape = (sizes.batch, sizes.frames, MELS)
        labels = batches.tokens(label_key, sizes.batch, sizes.labels, sizes.vocabulary - 1)
        batch = {
            "spectrograms": jax.random.normal(audio_key, shape),
            "labels": labels + 1,  # 0 is CTC's blank
        }
        keys = {"params": param_key, "dropout": param_key}
        variables = model.init(keys, batch["spectrograms"])
        params = variables["params"]
        state = TrainState(params, variables["batch_stats"], optimizer.init(params))
        return state, batch, drop_key

    def step(state, batch, key):
        def loss_of(params):
            logits, updated = model.apply(
                {"params": params, "batch_stats": state.statistics},
                batch["spectrograms"],
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            labels = batch["labels"]
            paddings = jnp.zeros(logits.shape[:2]), jnp.zeros(labels.shape)
            losses = optax.ctc_loss(logits, paddings[0], labels, paddings[1])
            return losses.mean(), updated["batch_stats"]

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("conformer", scale, step, make_args)
