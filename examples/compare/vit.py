"""ViT-B/16: a vision transformer that classifies images.

Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021: 12 pre-normalized layers of
width 768, 12 heads, a class token, learned positions. 86.6 million parameters. Trained
with AdamW, as in Steiner et al., 2021.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
    named_attention,
)

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
Dense = functools.partial(nn.Dense, kernel_init=nn.initializers.xavier_uniform())


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 64
    image: int = 224
    patch: int = 16
    width: int = 768
    layers: int = 12
    heads: int = 12
    classes: int = 1000


class Layer(nn.Module):
    """Self-attention and an MLP, each pre-normalized and added to its input."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = nn.MultiHeadDotProductAttention(
            self.sizes.heads,
            attention_fn=named_attention(nn.dot_product_attention),
            name="attention",
        )(nn.LayerNorm(name="attention_norm")(x))
        x = x + checkpoint_name(y, "out_proj")
        y = nn.LayerNorm(name="mlp_norm")(x)
        y = checkpoint_name(Dense(4 * self.sizes.width, name="mlp_in")(y), "mlpwi")
        y = Dense(self.sizes.width, name="mlp_out")(nn.gelu(y, approximate=False))
        return x + checkpoint_name(y, "mlpwo")


class ViT(nn.Module):
    """Images to logits, read off the class token."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        sizes = self.sizes
        patch = (sizes.patch, sizes.patch)
        x = nn.Conv(sizes.width, patch, patch, padding="VALID", name="patches")(images)
        x = x.reshape(x.shape[0], -1, sizes.width)
        token = self.param("class_token", nn.initializers.zeros, (1, 1, sizes.width))
        token = jnp.broadcast_to(token, (x.shape[0], 1, sizes.width))
        x = jnp.concatenate([token, x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        layer = self.wrap(Layer, remat=nn.remat)
        for number in range(sizes.layers):
            x = layer(sizes, name=f"layer_{number}")(x)
        x = nn.LayerNorm(name="norm")(x)
        return nn.Dense(sizes.classes, name="classifier")(x[:, 0])


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """ViT-B's step: cross-entropy and AdamW."""
    sizes = sizes or Sizes()
    model = ViT(sizes, wrap)
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY)

    def make_args(key):
        param_key, batch_key = jax.random.split(key)
        batch = batches.labelled_images(batch_key, sizes.batch, sizes.image, sizes.classes)
        params = model.init(param_key, batch["images"])["params"]
        return TrainState(params, (), optimizer.init(params)), batch

    def step(state, batch):
        def loss_of(params):
            logits = model.apply({"params": params}, batch["images"])
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            ).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, (), optimizer_state), loss

    return TrainingStep.build("vit", scale, step, make_args)
