"""PointNet++ for segmentation: neighbourhoods of points, shared MLPs, maxima.

Qi et al., "PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric
Space", 2017: levels of fewer and fewer centres that gather their nearest neighbours, and
back by interpolation between the three nearest centres. Points come in random order, so
the first of them are the random sample that stands for farthest-point sampling. Adam.
"""

from __future__ import annotations

import dataclasses
import functools

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

LEARNING_RATE = 1e-3
BatchNorm = functools.partial(nn.BatchNorm, use_running_average=False, momentum=0.9)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 32
    points: int = 4096
    classes: int = 50
    # Of each level: centres, neighbours, widths of the MLP.
    levels: tuple[tuple[int, int, tuple[int, ...]], ...] = (
        (1024, 32, (64, 64, 128)),
        (256, 32, (128, 128, 256)),
        (64, 16, (256, 256, 512)),
    )
    # Of the MLPs on the way back, coarsest level first.
    back: tuple[tuple[int, ...], ...] = ((256, 256), (256, 128), (128, 128))


def squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """`[batch, n, 3]` and `[batch, m, 3]` to `[batch, n, m]`."""
    products = jnp.einsum("bnd,bmd->bnm", a, b)
    squares = jnp.sum(a**2, -1)[:, :, None] + jnp.sum(b**2, -1)[:, None]
    return jnp.maximum(squares - 2 * products, 0)


def gathered(x: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows of `x[batch, n, ...]` by `indices[batch, ...]`."""
    return jax.vmap(lambda rows, index: rows[index])(x, indices)


class MLP(nn.Module):
    """Layers shared by all points: product, batch normalization, ReLU."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.widths:
            x = nn.relu(BatchNorm()(nn.Dense(width, use_bias=False)(x)))
        return x


class Abstraction(nn.Module):
    """The first `centres` points, each with the maximum over its neighbours."""

    centres: int
    neighbours: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, positions: jax.Array, features: jax.Array) -> jax.Array:
        centres = positions[:, : self.centres]
        distances = squared_distances(centres, positions)
        _, nearest = jax.lax.top_k(-distances, self.neighbours)
        offsets = gathered(positions, nearest) - centres[:, :, None]
        grouped = jnp.concatenate([offsets, gathered(features, nearest)], axis=-1)
        return jnp.max(MLP(self.widths)(grouped), axis=2)


class Propagation(nn.Module):
    """Features of centres interpolated at the points, joined with those of the points."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(
        self, positions: jax.Array, features: jax.Array, coarse: jax.Array
    ) -> jax.Array:
        centres = positions[:, : coarse.shape[1]]
        negated, nearest = jax.lax.top_k(-squared_distances(positions, centres), 3)
        weights = 1 / (1e-8 - negated)
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        interpolated = jnp.einsum("bnk,bnkc->bnc", weights, gathered(coarse, nearest))
        return MLP(self.widths)(jnp.concatenate([interpolated, features], axis=-1))


class PointNet(nn.Module):
    """Points with features (here their normals) to logits of their parts."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, points: jax.Array, normals: jax.Array) -> jax.Array:
        sizes = self.sizes
        abstraction = self.wrap(Abstraction, remat=nn.remat)
        propagation = self.wrap(Propagation, remat=nn.remat)
        features = [normals]
        for number, level in enumerate(sizes.levels):
            positions = points[:, : features[-1].shape[1]]
            block = abstraction(*level, name=f"abstraction_{number}")
            features.append(block(positions, features[-1]))
        x = features.pop()
        for number, widths in enumerate(sizes.back):
            fine = features.pop()
            block = propagation(widths, name=f"propagation_{number}")
            x = block(points[:, : fine.shape[1]], fine, x)
        x = nn.Dropout(0.5, deterministic=False)(MLP((128,), name="head")(x))
        return nn.Dense(sizes.classes, name="classifier")(x)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy of the points' parts; Adam."""
    sizes = sizes or Sizes()
    model = PointNet(sizes, wrap)
    optimizer = optax.adam(LEARNING_RATE)

    def make_args(key):
        param_key, point_key, normal_key, label_key, drop_key = jax.random.split(key, 5)
        shape = (sizes.batch, sizes.points)
        batch = {
            "points": jax.random.uniform(point_key, (*shape, 3)),
            "normals": jax.random.normal(normal_key, (*shape, 3)),
            "labels": jax.random.randint(label_key, shape, 0, sizes.classes),
        }
        keys = {"params": param_key, "dropout": param_key}
        variables = model.init(keys, batch["points"], batch["normals"])
        params = variables["params"]
        state = TrainState(params, variables["batch_stats"], optimizer.init(params))
        return state, batch, drop_key

    def step(state, batch, key):
        def loss_of(params):
            logits, updated = model.apply(
                {"params": params, "batch_stats": state.statistics},
                batch["points"],
                batch["normals"],
                mutable=["batch_stats"],
                rngs={"dropout": key},
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            )
            return losses.mean(), updated["batch_stats"]

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("point_net", scale, step, make_args)
