"""A 3-D U-Net that segments volumes.

Çiçek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation",
2016, with group normalization (batches of volumes are small). Cross-entropy and soft
Dice loss, Adam: the form in common use for medical images.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from compare.second.gradient_step import gradient_step
from flax import linen as nn
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 3e-4
GROUPS = 8


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 2
    side: int = 96
    channels: int = 4
    classes: int = 4
    features: tuple[int, ...] = (32, 64, 128, 256)


class DoubleConvolution(nn.Module):
    """Twice: 3x3x3 convolution, group normalization, ReLU."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(2):
            x = nn.Conv(self.features, (3, 3, 3), use_bias=False)(x)
            x = nn.relu(nn.GroupNorm(GROUPS)(x))
        return x


class Up(nn.Module):
    """Doubles the resolution, joins the encoder's features, and convolves."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, skip: jax.Array) -> jax.Array:
        x = nn.ConvTranspose(self.features, (2, 2, 2), (2, 2, 2))(x)
        x = jnp.concatenate([skip, x], axis=-1)
        return DoubleConvolution(self.features)(x)


class UNet3D(nn.Module):
    """Volumes `[batch, side, side, side, channels]` to logits of their voxels."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, volumes: jax.Array) -> jax.Array:
        *outer, innermost = self.sizes.features
        convolve = self.wrap(DoubleConvolution, remat=nn.remat)
        up = self.wrap(Up, remat=nn.remat)
        x, skips = volumes, []
        for level, features in enumerate(outer):
            x = convolve(features, name=f"down_{level}")(x)
            skips.append(x)
            x = nn.max_pool(x, (2, 2, 2), (2, 2, 2))
        x = convolve(innermost, name="bottom")(x)
        for level in reversed(range(len(outer))):
            x = up(outer[level], name=f"up_{level}")(x, skips[level])
        return nn.Conv(self.sizes.classes, (1, 1, 1), name="head")(x)


def dice_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """One minus the soft Dice coefficient, over classes and volumes."""
    predicted = jax.nn.softmax(logits)
    expected = jax.nn.one_hot(labels, logits.shape[-1])
    axes = (1, 2, 3)
    shared = jnp.sum(predicted * expected, axes)
    total = jnp.sum(predicted, axes) + jnp.sum(expected, axes)
    return 1 - jnp.mean((2 * shared + 1e-5) / (total + 1e-5))


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy and Dice loss; Adam."""
    sizes = sizes or Sizes()
    model = UNet3D(sizes, wrap)
    optimizer = optax.adam(LEARNING_RATE)

    def make_args(key):
        param_key, volume_key, label_key = jax.random.split(key, 3)
        voxels = (sizes.batch, *(sizes.side,) * 3)
        batch = {
            "volumes": jax.random.normal(volume_key, (*voxels, sizes.channels)),
            "labels": jax.random.randint(label_key, voxels, 0, sizes.classes),
        }
        params = model.init(param_key, batch["volumes"])["params"]
        return TrainState(params, (), optimizer.init(params)), batch

    def step(state, batch):
        labels = batch["labels"]

        def loss_of(params):
            logits = model.apply({"params": params}, batch["volumes"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean() + dice_loss(logits, labels), ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("unet3d", scale, step, make_args)
