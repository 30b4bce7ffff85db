"""ResNet-50: residual bottleneck blocks for image classification.

He et al., "Deep Residual Learning for Image Recognition", 2016, in the form in common
use: a stage's stride is in its 3x3 convolution, and the last batch normalization of a
block starts at zero (Goyal et al., 2017). 25.6 million parameters.

The paper's sizes: batch 115, 224x224. The authors' script trains with SGD, learning
rate 1e-3 and no momentum.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 115
    image: int = 224
    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(batch=8, image=64, classes=10, width=8, blocks=(1, 2, 2, 1)),
}
LEARNING_RATE = 1e-3
EXPANSION = 4

Conv = functools.partial(nn.Conv, use_bias=False, kernel_init=nn.initializers.he_normal())
BatchNorm = functools.partial(
    nn.BatchNorm, use_running_average=False, momentum=0.9, epsilon=1e-5
)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around a shortcut.

    Attributes:
        width: channels of the 3x3 convolution; the block's output has four times these.
        stride: of the 3x3 convolution, and of the shortcut.
    """

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.stride, self.stride)
        y = nn.relu(BatchNorm()(Conv(self.width, (1, 1))(x)))
        y = Conv(self.width, (3, 3), strides, padding=1)(y)
        y = nn.relu(BatchNorm()(y))
        y = Conv(EXPANSION * self.width, (1, 1))(y)
        y = BatchNorm(scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = Conv(EXPANSION * self.width, (1, 1), strides, name="shortcut")(x)
            x = BatchNorm(name="shortcut_norm")(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """The stem, four stages of bottlenecks, and a linear classifier."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = Conv(self.sizes.width, (7, 7), (2, 2), padding=3, name="stem")(images)
        x = nn.relu(BatchNorm(name="stem_norm")(x))
        x = nn.max_pool(x, (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        bottleneck = self.wrap(Bottleneck, remat=nn.remat)
        numbers = itertools.count()
        for stage, num_blocks in enumerate(self.sizes.blocks):
            for block in range(num_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                name = f"Bottleneck_{next(numbers)}"  # the same when wrapped
                x = bottleneck(self.sizes.width * 2**stage, stride, name=name)(x)
        return nn.Dense(self.sizes.classes, name="classifier")(jnp.mean(x, (1, 2)))


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """ResNet-50's step: cross-entropy and SGD."""
    sizes = sizes or SIZES[scale]
    model = ResNet(sizes, wrap)
    optimizer = optax.sgd(LEARNING_RATE)

    def make_args(key):
        param_key, batch_key = jax.random.split(key)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        variables = model.init(param_key, batch["images"])
        params = variables["params"]
        state = TrainState(params, variables["batch_stats"], optimizer.init(params))
        return state, batch

    def step(state, batch):
        def loss_of(params):
            logits, updated = model.apply(
                {"params": params, "batch_stats": state.statistics},
                batch["images"],
                mutable=["batch_stats"],
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            ).mean()
            return loss, updated["batch_stats"]

        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state.params
        )
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, statistics, optimizer_state), loss

    return TrainingStep.build("resnet50", scale, step, make_args)
