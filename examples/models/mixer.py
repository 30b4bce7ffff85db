"""Mixer: MLPs across patches and across channels, in turns (MLP-Mixer, 2021)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike


class MLP(nn.Module):
    """Two dense layers over the last axis, back to its own width."""

    hidden: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.gelu(nn.Dense(self.hidden, dtype=self.dtype)(x))
        return nn.Dense(x.shape[-1], dtype=self.dtype)(y)


class MixerBlock(nn.Module):
    """Mix the patches, then the channels, each on a residual branch."""

    patch_hidden: int
    channel_hidden: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.LayerNorm(dtype=self.dtype)(x).swapaxes(1, 2)
        x = x + MLP(self.patch_hidden, self.dtype)(y).swapaxes(1, 2)
        y = nn.LayerNorm(dtype=self.dtype)(x)
        return x + MLP(self.channel_hidden, self.dtype)(y)


class Mixer(nn.Module):
    """Images `[batch, height, width, channels]` to logits `[batch, classes]`.

    Attributes:
        num_classes: the number of logits.
        num_layers: the number of blocks.
        width: channels per patch.
        patch_size: side of the square patches.
        dtype: of activations; parameters and logits are float32.
    """

    num_classes: int
    num_layers: int
    width: int
    patch_size: int = 4
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, is_training: bool) -> jax.Array:
        del is_training  # Nothing here behaves differently in training.
        patch = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, patch, patch, dtype=self.dtype)(images)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for _ in range(self.num_layers):
            x = MixerBlock(self.width // 2, 4 * self.width, self.dtype)(x)
        x = nn.LayerNorm(dtype=self.dtype)(x)
        x = x.mean(axis=1).astype(jnp.float32)
        return nn.Dense(self.num_classes)(x)
