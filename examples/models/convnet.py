"""ConvNet: residual 3x3 convolutions with batch normalisation (ResNet v1)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike


class ResidualBlock(nn.Module):
    """Two convolutions on a residual branch; `stride` 2 halves the image."""

    width: int
    stride: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        def conv(size: int, stride: int) -> nn.Conv:
            return nn.Conv(
                self.width, (size, size), stride, use_bias=False, dtype=self.dtype
            )

        def norm(**kwargs) -> nn.BatchNorm:
            return nn.BatchNorm(not is_training, momentum=0.9, dtype=self.dtype, **kwargs)

        y = nn.relu(norm()(conv(3, self.stride)(x)))
        # A zero scale makes every block the identity at first, which trains more
        # steadily (Goyal et al., "Accurate, Large Minibatch SGD", 2017).
        y = norm(scale_init=nn.initializers.zeros)(conv(3, 1)(y))
        if x.shape != y.shape:
            x = norm()(conv(1, self.stride)(x))
        return nn.relu(x + y)


class ConvNet(nn.Module):
    """Images `[batch, height, width, channels]` to logits `[batch, classes]`.

    Attributes:
        num_classes: the number of logits.
        stage_sizes: blocks per stage; each stage but the first halves the image and
            doubles the channels.
        width: channels of the first stage.
        dtype: of activations; parameters, statistics and logits are float32.
    """

    num_classes: int
    stage_sizes: Sequence[int] = (2, 2, 2)
    width: int = 32
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, is_training: bool) -> jax.Array:
        x = nn.Conv(self.width, (3, 3), use_bias=False, dtype=self.dtype)(images)
        x = nn.BatchNorm(not is_training, momentum=0.9, dtype=self.dtype)(x)
        x = nn.relu(x)
        for stage, num_blocks in enumerate(self.stage_sizes):
            for idx in range(num_blocks):
                stride = 2 if stage > 0 and idx == 0 else 1
                x = ResidualBlock(self.width * 2**stage, stride, self.dtype)(x, is_training)
        x = x.mean(axis=(1, 2)).astype(jnp.float32)
        return nn.Dense(self.num_classes)(x)
