"""WaveNet: dilated causal convolutions that predict the next sample of audio.

van den Oord et al., "WaveNet: A Generative Model for Raw Audio", 2016: gated activations,
residual and skip connections, dilations that double from layer to layer, a softmax over
256 mu-law levels. Adam.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import optax
from compare.second.gradient_step import gradient_step
from flax import linen as nn
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 1e-3
Causal = functools.partial(nn.Conv, padding="CAUSAL")


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 8
    samples: int = 16384
    levels: int = 256
    width: int = 128
    skip: int = 256
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Layer(nn.Module):
    """A gated dilated convolution; what goes on, and what skips to the end."""

    width: int
    skip: int
    dilation: int

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        dilation = (self.dilation,)
        filtered = Causal(self.width, (2,), kernel_dilation=dilation, name="filter")(x)
        gate = Causal(self.width, (2,), kernel_dilation=dilation, name="gate")(x)
        y = nn.tanh(filtered) * nn.sigmoid(gate)
        skipped = nn.Conv(self.skip, (1,), name="skip")(y)
        return x + nn.Conv(self.width, (1,), name="residual")(y), skipped


class WaveNet(nn.Module):
    """Levels `[batch, samples]` to logits of the next ones."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, levels: jax.Array) -> jax.Array:
        sizes = self.sizes
        x = jax.nn.one_hot(levels, sizes.levels)
        x = Causal(sizes.width, (2,), name="causal")(x)
        layer = self.wrap(Layer, remat=nn.remat)
        skips = []
        for number, dilation in enumerate(sizes.dilations):
            block = layer(sizes.width, sizes.skip, dilation, name=f"layer_{number}")
            x, skipped = block(x)
            skips.append(skipped)
        y = nn.relu(sum(skips))
        y = nn.relu(nn.Conv(sizes.skip, (1,), name="head_in")(y))
        return nn.Conv(sizes.levels, (1,), name="head_out")(y)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy of the next sample; Adam."""
    sizes = sizes or Sizes()
    model = WaveNet(sizes, wrap)
    optimizer = optax.adam(LEARNING_RATE)

    def make_args(key):
        param_key, audio_key = jax.random.split(key)
        levels = batches.tokens(audio_key, sizes.batch, sizes.samples + 1, sizes.levels)
        params = model.init(param_key, levels[:, :-1])["params"]
        return TrainState(params, (), optimizer.init(params)), {"levels": levels}

    def step(state, batch):
        levels = batch["levels"]

        def loss_of(params):
            logits = model.apply({"params": params}, levels[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, levels[:, 1:])
            return losses.mean(), ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("wavenet", scale, step, make_args)
