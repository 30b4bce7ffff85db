"""T5 1.1: an encoder and a decoder with biases by relative position.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text
Transformer", 2020, in the 1.1 form: RMS normalization before each part, gated gelu, no
biases, no dropout in pretraining, a table of position biases per stack. Adafactor. The
base size, with four layers a stack; logits of attention are scaled as usual.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
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

LEARNING_RATE = 1e-2
BUCKETS = 32
FARTHEST = 128
Dense = functools.partial(nn.Dense, use_bias=False)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 24
    source: int = 512
    target: int = 128
    vocabulary: int = 32128
    width: int = 768
    hidden: int = 2048
    layers: int = 4
    heads: int = 12


def buckets(length: int, is_causal: bool) -> np.ndarray:
    """The row of the bias table for each pair of positions: exact when near, then by the
    logarithm of the distance up to `FARTHEST`."""
    distance = np.arange(length)[:, None] - np.arange(length)
    num, result = BUCKETS, np.zeros_like(distance)
    if is_causal:
        distance = np.maximum(distance, 0)
    else:
        num //= 2
        result = num * (distance < 0)
        distance = np.abs(distance)
    exact = num // 2
    scaled = np.log(np.maximum(distance, 1) / exact) / np.log(FARTHEST / exact)
    far = np.minimum(exact + (scaled * (num - exact)).astype(int), num - 1)
    return result + np.where(distance < exact, distance, far)


class PositionBias(nn.Module):
    """Numbers to add to the logits, `[1, head, position, position]`."""

    heads: int
    is_causal: bool

    @nn.compact
    def __call__(self, length: int) -> jax.Array:
        init = nn.initializers.normal(1.0)
        table = self.param("table", init, (BUCKETS, self.heads))
        return jnp.transpose(table[buckets(length, self.is_causal)], (2, 0, 1))[None]


class FeedForward(nn.Module):
    """Gated gelu."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        gate = checkpoint_name(Dense(self.sizes.hidden, name="wi_0")(x), "mlpwi_0")
        y = checkpoint_name(Dense(self.sizes.hidden, name="wi_1")(x), "mlpwi_1")
        y = Dense(self.sizes.width, name="wo")(nn.gelu(gate) * y)
        return checkpoint_name(y, "mlpwo")


class EncoderLayer(nn.Module):
    """Self-attention and an MLP, each pre-normalized and added to its input."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        y = nn.RMSNorm(name="attention_norm")(x)
        x = x + Attention(self.sizes.heads, name="attention")(y, bias=bias)
        return x + FeedForward(self.sizes, name="mlp")(nn.RMSNorm(name="mlp_norm")(x))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoded source, and an MLP."""

    sizes: Sizes

    @nn.compact
    def __call__(
        self, x: jax.Array, encoded: jax.Array, bias: jax.Array, mask: jax.Array
    ) -> jax.Array:
        heads = self.sizes.heads
        y = nn.RMSNorm(name="attention_norm")(x)
        x = x + Attention(heads, name="attention")(y, bias=bias, mask=mask)
        y = nn.RMSNorm(name="cross_norm")(x)
        x = x + Attention(heads, name="cross")(y, encoded)
        return x + FeedForward(self.sizes, name="mlp")(nn.RMSNorm(name="mlp_norm")(x))


class T5(nn.Module):
    """Source tokens and the target tokens so far to logits of the next ones."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        sizes = self.sizes
        init = nn.initializers.normal(1.0)
        embed = nn.Embed(sizes.vocabulary, sizes.width, embedding_init=init, name="tokens")
        bias = PositionBias(sizes.heads, False, name="encoder_bias")(source.shape[1])
        encoder = self.wrap(EncoderLayer, remat=nn.remat)
        x = embed(source)
        for number in range(sizes.layers):
            x = encoder(sizes, name=f"encoder_{number}")(x, bias)
        encoded = nn.RMSNorm(name="encoder_norm")(x)
        bias = PositionBias(sizes.heads, True, name="decoder_bias")(target.shape[1])
        mask = nn.make_causal_mask(target, dtype=bool)
        decoder = self.wrap(DecoderLayer, remat=nn.remat)
        x = embed(target)
        for number in range(sizes.layers):
            x = decoder(sizes, name=f"decoder_{number}")(x, encoded, bias, mask)
        x = nn.RMSNorm(name="decoder_norm")(x)
        return Dense(sizes.vocabulary, name="head")(x)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy of the target with teacher forcing; Adafactor."""
    sizes = sizes or Sizes()
    model = T5(sizes, wrap)
    optimizer = optax.adafactor(LEARNING_RATE)

    def make_args(key):
        param_key, source_key, target_key = jax.random.split(key, 3)
        batch = {
            "source": batches.tokens(
                source_key, sizes.batch, sizes.source, sizes.vocabulary
            ),
            "target": batches.tokens(
                target_key, sizes.batch, sizes.target + 1, sizes.vocabulary
            ),
        }
        variables = model.init(param_key, batch["source"], batch["target"][:, :-1])
        params = variables["params"]
        return TrainState(params, (), optimizer.init(params)), batch

    def step(state, batch):
        def loss_of(params):
            target = batch["target"]
            logits = model.apply({"params": params}, batch["source"], target[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, target[:, 1:])
            return losses.mean(), ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("t5", scale, step, make_args)
