"""SPOS: a supernet of ShuffleNet blocks of which one random path trains at a time.

Guo et al., "Single Path One-Shot Neural Architecture Search with Uniform Sampling",
2020: 20 choice blocks, each one of four ShuffleNet V2 units (Ma et al., 2018): kernels
of 3, 5 and 7, and the deeper Xception-like one. As in the supernet for CIFAR-10 that
the authors' script trains, the stem keeps the resolution, only the fifth and the ninth
block halve it, and batch normalization has no affine parameters.

The paper's sizes: batch 256, 32x32, SGD with learning rate 0.025, momentum 0.9 and
weight decay 3e-4.

A path is a tuple that is static for JAX, so each path is a program of its own, planned
for itself. The state holds the whole supernet. A step reads and writes the part on its
path only: the rest passes through, neither decayed nor moved by old momentum. That is
also why the optimizer's state is kept per block.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping
from typing import Any

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
    batch: int = 256
    image: int = 32
    classes: int = 10
    stem: int = 16
    head: int = 1024
    # Output channels of every choice block, and which blocks halve the resolution.
    channels: tuple[int, ...] = (64,) * 4 + (160,) * 4 + (320,) * 8 + (640,) * 4
    halving: tuple[int, ...] = (4, 8)


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(
        batch=8,
        image=16,
        stem=8,
        head=32,
        channels=(16, 16, 24, 32),
        halving=(2,),
    ),
}
KERNELS = (3, 5, 7, None)  # None: the Xception-like unit
LEARNING_RATE = 0.025
MOMENTUM = 0.9
WEIGHT_DECAY = 3e-4

Path = tuple[int, ...]

BatchNorm = functools.partial(
    nn.BatchNorm,
    use_running_average=False,
    momentum=0.9,
    epsilon=1e-5,
    use_bias=False,
    use_scale=False,
)


class Convolution(nn.Module):
    """A convolution without bias, batch normalization and, unless depthwise, ReLU.

    Attributes:
        features: output channels; None for a depthwise convolution, which keeps them.
    """

    features: int | None
    kernel: int = 1
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        is_depthwise = self.features is None
        x = nn.Conv(
            x.shape[-1] if is_depthwise else self.features,
            (self.kernel, self.kernel),
            (self.stride, self.stride),
            padding=self.kernel // 2,
            feature_group_count=x.shape[-1] if is_depthwise else 1,
            use_bias=False,
            kernel_init=nn.initializers.he_normal(),
        )(x)
        x = BatchNorm()(x)
        return x if is_depthwise else nn.relu(x)


class ShuffleUnit(nn.Module):
    """One choice: half of the channels pass by, the other half is convolved.

    Attributes:
        channels: of the output.
        kernel: of the depthwise convolution; None for three of 3x3 (Xception).
        stride: 2 halves the resolution, and then the half that passes by is convolved
            too, and both halves see the whole input.
    """

    channels: int
    kernel: int | None
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel or 3
        if self.stride == 1:
            # Even and odd channels: the shuffle of the previous unit and this unit's
            # split in one.
            shortcut, x = jnp.unstack(x.reshape(*x.shape[:-1], -1, 2), axis=-1)
        else:
            shortcut = Convolution(None, kernel, self.stride)(x)
            shortcut = Convolution(x.shape[-1])(shortcut)
        middle = self.channels // 2
        outputs = self.channels - shortcut.shape[-1]
        if self.kernel is None:
            x = Convolution(None, kernel, self.stride)(x)
            x = Convolution(middle)(x)
            x = Convolution(None, kernel)(x)
            x = Convolution(middle)(x)
            x = Convolution(None, kernel)(x)
        else:
            x = Convolution(middle)(x)
            x = Convolution(None, kernel, self.stride)(x)
        return jnp.concatenate([shortcut, Convolution(outputs)(x)], axis=-1)


def choice_name(block: int, choice: int) -> str:
    return f"block_{block}_choice_{choice}"


class Supernet(nn.Module):
    """The network along one path; its initialisation makes every choice of every block.

    Attributes:
        choices: the path: the choice taken in each block.
    """

    sizes: Sizes
    choices: Path
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        sizes = self.sizes
        x = Convolution(sizes.stem, 3, name="stem")(images)
        unit = self.wrap(ShuffleUnit, remat=nn.remat)
        for block, (channels, taken) in enumerate(
            zip(sizes.channels, self.choices, strict=True)
        ):
            stride = 2 if block in sizes.halving else 1
            made = range(len(KERNELS)) if self.is_initializing() else [taken]
            results = {
                choice: unit(
                    channels, KERNELS[choice], stride, name=choice_name(block, choice)
                )(x)
                for choice in made
            }
            x = results[taken]
        x = jnp.mean(Convolution(sizes.head, name="head")(x), (1, 2))
        return nn.Dense(sizes.classes, use_bias=False, name="classifier")(x)


def random_path(seed: int, num_blocks: int = len(Sizes.channels)) -> Path:
    """A path drawn uniformly, as every iteration of the search draws one."""
    generator = random.Random(seed)
    return tuple(generator.randrange(len(KERNELS)) for _ in range(num_blocks))


def training_step(
    scale: Scale,
    seed: int = 0,
    sizes: Sizes | None = None,
    wrap: Wrap = as_written,
) -> TrainingStep:
    """SPOS's step along the random path of `seed`: cross-entropy and SGD."""
    sizes = sizes or SIZES[scale]
    path = random_path(seed, len(sizes.channels))
    model = Supernet(sizes, path, wrap)
    optimizer = optax.chain(
        optax.add_decayed_weights(WEIGHT_DECAY), optax.sgd(LEARNING_RATE, MOMENTUM)
    )
    taken = {choice_name(block, choice) for block, choice in enumerate(path)}

    def on_path(collection: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in collection.items()
            if name in taken or not name.startswith("block_")
        }

    def make_args(key):
        param_key, batch_key = jax.random.split(key)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        variables = model.init(param_key, batch["images"])
        params = variables["params"]
        optimizers = {name: optimizer.init(value) for name, value in params.items()}
        return TrainState(params, variables["batch_stats"], optimizers), batch

    def step(state, batch):
        def loss_of(params):
            logits, updated = model.apply(
                {"params": params, "batch_stats": on_path(state.statistics)},
                batch["images"],
                mutable=["batch_stats"],
            )
            loss = optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            ).mean()
            return loss, updated["batch_stats"]

        trained = on_path(state.params)
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        params, optimizers = {}, {}
        for name, value in trained.items():
            updates, optimizers[name] = optimizer.update(
                gradients[name], state.optimizer[name], value
            )
            params[name] = optax.apply_updates(value, updates)
        return (
            TrainState(
                {**state.params, **params},
                {**state.statistics, **statistics},
                {**state.optimizer, **optimizers},
            ),
            loss,
        )

    return TrainingStep.build("spos", scale, step, make_args)
