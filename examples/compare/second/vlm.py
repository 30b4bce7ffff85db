"""A vision-language model: images are a prefix to the text that describes them.

Beyer et al., "PaliGemma: A versatile 3B VLM for transfer", 2024: a vision transformer, a
linear projection, and a decoder that attends to the whole prefix and causally to the
text; cross-entropy on the text alone, all weights trained. Four layers each, products in
bfloat16 (float32 on CPU), AdamW after clipping.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.second.attention import Attention
from compare.second.gradient_step import gradient_step
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from paper.networks import batches
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 1e-5


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 32
    image: int = 224
    patch: int = 16
    vision_width: int = 768
    vision_layers: int = 4
    vision_heads: int = 12
    text: int = 128
    vocabulary: int = 32000
    width: int = 1024
    hidden: int = 4096
    layers: int = 4
    heads: int = 16
    dtype: Any = jnp.bfloat16


class VisionLayer(nn.Module):
    """Self-attention and an MLP, each pre-normalized and added to its input."""

    heads: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, dtype = x.shape[-1], self.dtype
        y = nn.LayerNorm(dtype=dtype, name="attention_norm")(x)
        x = x + Attention(self.heads, dtype, use_bias=True, name="attention")(y)
        y = nn.LayerNorm(dtype=dtype, name="mlp_norm")(x)
        y = nn.Dense(4 * width, dtype=dtype, name="mlp_in")(y)
        y = nn.gelu(checkpoint_name(y, "mlpwi"))
        y = nn.Dense(width, dtype=dtype, name="mlp_out")(y)
        return x + checkpoint_name(y, "mlpwo")


class TextLayer(nn.Module):
    """Masked self-attention with rotary positions and a gated MLP."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        sizes, dtype = self.sizes, self.sizes.dtype

        def dense(width, name, label):
            layer = nn.Dense(width, use_bias=False, dtype=dtype, name=name)
            return lambda x: checkpoint_name(layer(x), label)

        y = nn.RMSNorm(dtype=dtype, name="attention_norm")(x)
        attention = Attention(sizes.heads, dtype, rotary=True, name="attention")
        x = x + attention(y, mask=mask)
        y = nn.RMSNorm(dtype=dtype, name="mlp_norm")(x)
        gate = nn.gelu(dense(sizes.hidden, "wi_0", "mlpwi_0")(y))
        y = gate * dense(sizes.hidden, "wi_1", "mlpwi_1")(y)
        return x + dense(sizes.width, "wo", "mlpwo")(y)


class VisionLanguageModel(nn.Module):
    """Images and the text so far to logits of the text's next tokens."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, images: jax.Array, tokens: jax.Array) -> jax.Array:
        sizes, dtype = self.sizes, self.sizes.dtype
        patch, width = (sizes.patch, sizes.patch), sizes.vision_width
        x = nn.Conv(width, patch, patch, padding="VALID", dtype=dtype)(images)
        x = x.reshape(x.shape[0], -1, width)
        positions = self.param("positions", nn.initializers.normal(0.02), x.shape[1:])
        x = x + positions.astype(dtype)
        layer = self.wrap(VisionLayer, remat=nn.remat)
        for number in range(sizes.vision_layers):
            x = layer(sizes.vision_heads, dtype, name=f"vision_{number}")(x)
        x = nn.LayerNorm(dtype=dtype, name="vision_norm")(x)
        prefix = nn.Dense(sizes.width, dtype=dtype, name="projection")(x)
        embed = nn.Embed(sizes.vocabulary, sizes.width, dtype=dtype, name="tokens")
        x = jnp.concatenate([prefix, embed(tokens)], axis=1)
        position = jnp.arange(x.shape[1])
        is_prefix = position < prefix.shape[1]
        mask = (position[:, None] >= position) | is_prefix
        layer = self.wrap(TextLayer, remat=nn.remat)
        for number in range(sizes.layers):
            x = layer(sizes, name=f"text_{number}")(x, mask[None, None])
        x = nn.RMSNorm(dtype=dtype, name="norm")(x[:, prefix.shape[1] :])
        return embed.attend(x).astype(jnp.float32)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Cross-entropy of the text; AdamW."""
    sizes = sizes or Sizes()
    model = VisionLanguageModel(sizes, wrap)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, weight_decay=1e-6)
    )

    def make_args(key):
        param_key, image_key, token_key = jax.random.split(key, 3)
        shape = (sizes.batch, sizes.image, sizes.image, 3)
        batch = {
            "images": jax.random.normal(image_key, shape),
            "tokens": batches.tokens(
                token_key, sizes.batch, sizes.text + 1, sizes.vocabulary
            ),
        }
        variables = model.init(param_key, batch["images"], batch["tokens"][:, :-1])
        params = variables["params"]
        return TrainState(params, (), optimizer.init(params)), batch

    def step(state, batch):
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_of(params):
            logits = model.apply({"params": params}, batch["images"], inputs)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
            return losses.mean(), ()

        return gradient_step(optimizer, state, loss_of)

    return TrainingStep.build("vlm", scale, step, make_args)
