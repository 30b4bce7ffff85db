"""U-Net: an encoder and a decoder with skip connections, for segmentation.

Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation",
2015, in the padded, batch-normalized form in common use. 31.0 million parameters.

The paper's sizes: batch 5, 460x608, 3 channels, 2 classes, transposed convolutions
rather than bilinear upsampling, and binary cross-entropy with logits. The authors'
script trains with SGD, learning rate 1e-3 and no momentum.
"""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 5
    # Not a multiple of 16, so that the decoder has to pad: 115 -> 57 -> 114.
    height: int = 460
    width: int = 608
    channels: int = 3
    classes: int = 2
    features: tuple[int, ...] = (64, 128, 256, 512, 1024)


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(batch=2, height=44, width=60, features=(8, 16, 32, 64)),
}
LEARNING_RATE = 1e-3


class DoubleConvolution(nnx.Module):
    """Twice: 3x3 convolution, batch normalization, ReLU."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs):
        def convolution(channels):
            return nnx.Conv(channels, outputs, (3, 3), use_bias=False, rngs=rngs)

        def norm():
            return nnx.BatchNorm(outputs, momentum=0.9, epsilon=1e-5, rngs=rngs)

        self.layers = nnx.Sequential(
            convolution(inputs),
            norm(),
            nnx.relu,
            convolution(outputs),
            norm(),
            nnx.relu,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layers(x)


class Up(nnx.Module):
    """Doubles the resolution, joins the encoder's features, and convolves."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs):
        self.upsample = nnx.ConvTranspose(
            inputs, outputs, (2, 2), strides=(2, 2), padding="VALID", rngs=rngs
        )
        self.convolve = DoubleConvolution(2 * outputs, outputs, rngs)

    def __call__(self, x: jax.Array, skip: jax.Array) -> jax.Array:
        x = self.upsample(x)
        # Pooling dropped an odd last row or column; pad it back around the middle.
        missing = [skip.shape[axis] - x.shape[axis] for axis in (1, 2)]
        around = [(size // 2, size - size // 2) for size in missing]
        x = jnp.pad(x, [(0, 0), *around, (0, 0)])
        return self.convolve(jnp.concatenate([skip, x], axis=-1))


def apply_block(block: nnx.Module, *inputs: jax.Array) -> jax.Array:
    return block(*inputs)


class UNet(nnx.Module):
    """Down through `sizes.features`, up again, and a logit per pixel and class."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, wrap: Wrap = as_written):
        features = sizes.features
        self.apply = wrap(apply_block, remat=nnx.remat)
        self.stem = DoubleConvolution(sizes.channels, features[0], rngs)
        self.down = nnx.List(
            DoubleConvolution(inputs, outputs, rngs)
            for inputs, outputs in itertools.pairwise(features)
        )
        self.up = nnx.List(
            Up(inputs, outputs, rngs)
            for inputs, outputs in itertools.pairwise(features[::-1])
        )
        self.head = nnx.Conv(features[0], sizes.classes, (1, 1), rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.apply(self.stem, images)
        skips = []
        for down in self.down:
            skips.append(x)
            x = self.apply(down, nnx.max_pool(x, (2, 2), (2, 2)))
        for up, skip in zip(self.up, reversed(skips), strict=True):
            x = self.apply(up, x, skip)
        return self.head(x)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """U-Net's step: binary cross-entropy with logits and SGD."""
    sizes = sizes or SIZES[scale]
    optimizer = optax.sgd(LEARNING_RATE)

    def split_model(key):
        return nnx.split(UNet(sizes, nnx.Rngs(key), wrap), nnx.Param, nnx.BatchStat)

    graph, *_ = jax.eval_shape(split_model, jax.random.key(0))

    def make_args(key):
        param_key, image_key, mask_key = jax.random.split(key, 3)
        _, params, statistics = split_model(param_key)
        pixels = (sizes.batch, sizes.height, sizes.width)
        images = jax.random.normal(image_key, (*pixels, sizes.channels))
        masks = jax.random.bernoulli(mask_key, shape=(*pixels, sizes.classes))
        state = TrainState(params, statistics, optimizer.init(params))
        return state, {"images": images, "masks": masks.astype(jnp.float32)}

    def step(state, batch):
        def loss_of(params):
            # A copy: the model writes its statistics under the gradient's trace.
            model = nnx.merge(graph, params, state.statistics, copy=True)
            logits = model(batch["images"])
            loss = optax.sigmoid_binary_cross_entropy(logits, batch["masks"]).mean()
            return loss, nnx.state(model, nnx.BatchStat)

        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state.params
        )
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, statistics, optimizer_state), loss

    return TrainingStep.build("unet", scale, step, make_args)
