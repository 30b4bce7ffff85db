"""Inception V3: factorized convolutions in parallel branches.

Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016,
figures 5, 6, 7 and 10, with the branch widths of the widespread implementations. 27.2
million parameters, of which 3.3 million are the auxiliary classifier's; it is part of
training, with a weight of 0.4, so it is part of the step.

The paper's sizes: batch 96, 299x299. The optimizer is not published; it is SGD as in
the authors' script for their other convolutional networks.
"""

from __future__ import annotations

import dataclasses
import functools

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
    """Sizes, and the blocks per resolution, each by its own width.

    Attributes:
        divisor: divides every channel count.
        pools: pool branch's channels, for each block at 35x35.
        factored: channels inside the 7x7 branches, for each block at 17x17.
        expanded: number of blocks at 8x8.
    """

    batch: int = 96
    image: int = 299
    classes: int = 1000
    divisor: int = 1
    pools: tuple[int, ...] = (32, 64, 64)
    factored: tuple[int, ...] = (128, 160, 160, 192)
    expanded: int = 2


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(
        batch=8,
        image=139,
        classes=10,
        divisor=8,
        pools=(32,),
        factored=(128,),
        expanded=1,
    ),
}
LEARNING_RATE = 1e-3
AUXILIARY_WEIGHT = 0.4
DROPOUT = 0.5

average_pool = functools.partial(nn.avg_pool, window_shape=(3, 3), padding="SAME")
max_pool = functools.partial(nn.max_pool, window_shape=(3, 3), strides=(2, 2))


class Convolution(nn.Module):
    """Convolution, batch normalization, ReLU."""

    features: int
    kernel: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: str = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(
            self.features,
            self.kernel,
            (self.stride, self.stride),
            padding=self.padding,
            use_bias=False,
            kernel_init=nn.initializers.truncated_normal(0.1),
        )(x)
        x = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-3)(x)
        return nn.relu(x)


class Block(nn.Module):
    """The base of all Inception blocks: channel counts divided for reduced sizes."""

    divisor: int

    def convolution(self, features: int, *args, **kwargs) -> Convolution:
        return Convolution(features // self.divisor, *args, **kwargs)


class Mixed35(Block):
    """Figure 5: 1x1, 5x5, double 3x3 and pooling branches."""

    pool: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolution = self.convolution
        single = convolution(64)(x)
        five = convolution(64, (5, 5))(convolution(48)(x))
        double = convolution(96, (3, 3))(convolution(64)(x))
        double = convolution(96, (3, 3))(double)
        pooled = convolution(self.pool)(average_pool(x))
        return jnp.concatenate([single, five, double, pooled], axis=-1)


class Reduce35(Block):
    """Figure 10: 35x35 to 17x17."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolution = functools.partial(self.convolution, padding="VALID")
        three = convolution(384, (3, 3), 2)(x)
        double = self.convolution(96, (3, 3))(convolution(64)(x))
        double = convolution(96, (3, 3), 2)(double)
        return jnp.concatenate([three, double, max_pool(x)], axis=-1)


class Mixed17(Block):
    """Figure 6: 7x7 convolutions factored into 1x7 and 7x1."""

    inner: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolution, inner = self.convolution, self.inner
        single = convolution(192)(x)
        seven = convolution(inner, (1, 7))(convolution(inner)(x))
        seven = convolution(192, (7, 1))(seven)
        double = convolution(inner, (7, 1))(convolution(inner)(x))
        double = convolution(inner, (1, 7))(double)
        double = convolution(inner, (7, 1))(double)
        double = convolution(192, (1, 7))(double)
        pooled = convolution(192)(average_pool(x))
        return jnp.concatenate([single, seven, double, pooled], axis=-1)


class Reduce17(Block):
    """17x17 to 8x8, with a factored 7x7 branch."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolution = self.convolution
        three = convolution(192)(x)
        three = convolution(320, (3, 3), 2, "VALID")(three)
        seven = convolution(192, (1, 7))(convolution(192)(x))
        seven = convolution(192, (7, 1))(seven)
        seven = convolution(192, (3, 3), 2, "VALID")(seven)
        return jnp.concatenate([three, seven, max_pool(x)], axis=-1)


class Mixed8(Block):
    """Figure 7: 3x3 convolutions spread into 1x3 and 3x1 side by side."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        convolution = self.convolution

        def spread(y):
            return [convolution(384, (1, 3))(y), convolution(384, (3, 1))(y)]

        single = convolution(320)(x)
        three = spread(convolution(384)(x))
        double = spread(convolution(384, (3, 3))(convolution(448)(x)))
        pooled = convolution(192)(average_pool(x))
        return jnp.concatenate([single, *three, *double, pooled], axis=-1)


class Auxiliary(Block):
    """The classifier that is attached to the 17x17 features during training."""

    classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.avg_pool(x, (5, 5), (3, 3))
        x = self.convolution(128)(x)
        # 5x5 at the paper's resolution: all that is left.
        x = self.convolution(768, x.shape[1:3], padding="VALID")(x)
        return nn.Dense(self.classes)(jnp.mean(x, (1, 2)))


def stem(network: InceptionV3, images: jax.Array) -> jax.Array:
    """The layers before the Inception blocks: images to 35x35 features."""

    def convolution(features, *args, padding="VALID"):
        return Convolution(features // network.sizes.divisor, *args, padding=padding)

    x = convolution(32, (3, 3), 2)(images)
    x = convolution(64, (3, 3), padding="SAME")(convolution(32, (3, 3))(x))
    x = convolution(192, (3, 3))(convolution(80)(max_pool(x)))
    return max_pool(x)


class InceptionV3(nn.Module):
    """Images to the logits of the classifier and of the auxiliary one."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        sizes = self.sizes
        divisor = sizes.divisor

        def block(kind, number, *args):
            name = f"{kind.__name__}_{number}"  # the same when wrapped
            return self.wrap(kind, remat=nn.remat)(divisor, *args, name=name)

        x = self.wrap(stem, remat=nn.remat)(self, images)
        for number, pool in enumerate(sizes.pools):
            x = block(Mixed35, number, pool)(x)
        x = block(Reduce35, 0)(x)
        for number, inner in enumerate(sizes.factored):
            x = block(Mixed17, number, inner)(x)
        auxiliary = Auxiliary(divisor, sizes.classes, name="auxiliary")(x)
        x = block(Reduce17, 0)(x)
        for number in range(sizes.expanded):
            x = block(Mixed8, number)(x)
        x = nn.Dropout(DROPOUT, deterministic=False)(jnp.mean(x, (1, 2)))
        return nn.Dense(sizes.classes, name="classifier")(x), auxiliary


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Inception V3's step: cross-entropy of both classifiers and SGD."""
    sizes = sizes or SIZES[scale]
    model = InceptionV3(sizes, wrap)
    optimizer = optax.sgd(LEARNING_RATE)

    def make_args(key):
        param_key, batch_key, dropout_key = jax.random.split(key, 3)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        variables = model.init({"params": param_key, "dropout": param_key}, batch["images"])
        params = variables["params"]
        state = TrainState(params, variables["batch_stats"], optimizer.init(params))
        return state, batch, dropout_key

    def step(state, batch, key):
        def loss_of(params):
            (logits, auxiliary), updated = model.apply(
                {"params": params, "batch_stats": state.statistics},
                batch["images"],
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            losses = [
                optax.softmax_cross_entropy_with_integer_labels(x, batch["labels"])
                for x in (logits, auxiliary)
            ]
            loss = jnp.mean(losses[0] + AUXILIARY_WEIGHT * losses[1])
            return loss, updated["batch_stats"]

        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            state.params
        )
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, statistics, optimizer_state), loss

    return TrainingStep.build("inception_v3", scale, step, make_args)
