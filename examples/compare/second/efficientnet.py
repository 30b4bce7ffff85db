"""EfficientNet: inverted bottlenecks with depthwise convolutions and squeeze-excite.

Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks",
2019. The widths, kernels and strides of B0 with at most two blocks a stage; swish, batch
normalization, stochastic depth, label smoothing, RMSProp with momentum.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
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

LEARNING_RATE = 0.016
SMOOTHING = 0.1
DROP_PATH = 0.2
# Of each stage: how often channels are multiplied, channels, stride, kernel, blocks.
B0 = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 2, 3, 2),
    (6, 112, 1, 5, 1),
    (6, 192, 2, 5, 1),
    (6, 320, 1, 3, 1),
)

Conv = functools.partial(nn.Conv, use_bias=False, kernel_init=nn.initializers.he_normal())
BatchNorm = functools.partial(
    nn.BatchNorm, use_running_average=False, momentum=0.99, epsilon=1e-3
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 64
    image: int = 224
    classes: int = 1000
    stem: int = 32
    stages: tuple[tuple[int, int, int, int, int], ...] = B0
    head: int = 1280


class MBConv(nn.Module):
    """Expand, convolve depthwise, squeeze and excite, project.

    Attributes:
        expansion: hidden channels by input channels.
        width: output channels.
        stride, kernel: of the depthwise convolution.
        drop_path: the probability with which an example skips the block.
    """

    expansion: int
    width: int
    stride: int
    kernel: int
    drop_path: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.shape[-1]
        hidden = self.expansion * inputs
        y = x
        if self.expansion > 1:
            y = nn.swish(BatchNorm(name="expand_norm")(Conv(hidden, (1, 1))(y)))
        kernel, strides = (self.kernel, self.kernel), (self.stride, self.stride)
        depthwise = Conv(hidden, kernel, strides, feature_group_count=hidden, name="depth")
        y = nn.swish(BatchNorm(name="depth_norm")(depthwise(y)))
        squeezed = jnp.mean(y, (1, 2), keepdims=True)
        squeezed = nn.swish(nn.Conv(max(1, inputs // 4), (1, 1), name="squeeze")(squeezed))
        y = y * nn.sigmoid(nn.Conv(hidden, (1, 1), name="excite")(squeezed))
        y = BatchNorm(name="project_norm")(Conv(self.width, (1, 1), name="project")(y))
        if x.shape != y.shape:
            return y
        drop = nn.Dropout(self.drop_path, broadcast_dims=(1, 2, 3), deterministic=False)
        return x + drop(y)


class EfficientNet(nn.Module):
    """The stem, stages of blocks, and a linear classifier."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        sizes = self.sizes
        x = Conv(sizes.stem, (3, 3), (2, 2), name="stem")(images)
        x = nn.swish(BatchNorm(name="stem_norm")(x))
        block = self.wrap(MBConv, remat=nn.remat)
        num_blocks = sum(blocks for *_, blocks in sizes.stages)
        drop_paths = np.linspace(0, DROP_PATH, num_blocks).tolist()
        number = 0
        for expansion, width, stride, kernel, blocks in sizes.stages:
            for position in range(blocks):
                stride_here = stride if position == 0 else 1
                options = (expansion, width, stride_here, kernel, drop_paths[number])
                x = block(*options, name=f"block_{number}")(x)
                number += 1
        x = nn.swish(BatchNorm(name="head_norm")(Conv(sizes.head, (1, 1), name="head")(x)))
        x = nn.Dropout(0.2, deterministic=False)(jnp.mean(x, (1, 2)))
        return nn.Dense(sizes.classes, name="classifier")(x)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy with smoothed labels; RMSProp."""
    sizes = sizes or Sizes()
    model = EfficientNet(sizes, wrap)
    optimizer = optax.rmsprop(LEARNING_RATE, decay=0.9, eps=1e-3, momentum=0.9)

    def make_args(key):
        param_key, batch_key, drop_key = jax.random.split(key, 3)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        keys = {"params": param_key, "dropout": param_key}
        variables = model.init(keys, batch["images"])
        params = variables["params"]
        state = TrainState(params, variables["batch_stats"], optimizer.init(params))
        return state, batch, drop_key

    def step(state, batch, key):
        def loss_of(params):
            logits, updated = model.apply(
                {"params": params, "batch_stats": state.statistics},
                batch["images"],
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            labels = jax.nn.one_hot(batch["labels"], sizes.classes)
            labels = optax.smooth_labels(labels, SMOOTHING)
            loss = optax.softmax_cross_entropy(logits, labels).mean()
            return loss, updated["batch_stats"]

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("efficientnet", scale, step, make_args)
