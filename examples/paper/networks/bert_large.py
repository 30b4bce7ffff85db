"""BERT Large: a bidirectional encoder trained to restore masked tokens.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language
Understanding", 2019: 24 layers of width 1024, 16 heads, post-layer normalization,
dropout 0.1. 335 million parameters (the published 340 million are rounded, and include
the pooler of the sentence task, which is not trained here).

The paper's sizes: batch 16, sequence 512. The loss is that of masked language
modelling, the optimizer Adam. Logits are computed at every position and weighted,
rather than gathered at the masked ones: that is how most implementations do it, and the
memory it takes is part of the experiment.
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


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 16
    sequence: int = 512
    vocabulary: int = 30522
    segments: int = 2
    width: int = 1024
    layers: int = 24
    heads: int = 16
    dropout: float = 0.1


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(batch=4, sequence=32, vocabulary=200, width=64, layers=3, heads=4),
}
LEARNING_RATE = 1e-4
MASKED_FRACTION = 0.15

INIT = nn.initializers.normal(0.02)
Dense = functools.partial(nn.Dense, kernel_init=INIT)
Embed = functools.partial(nn.Embed, embedding_init=INIT)
LayerNorm = functools.partial(nn.LayerNorm, epsilon=1e-12)
gelu = functools.partial(nn.gelu, approximate=False)


class Layer(nn.Module):
    """Self-attention and an MLP, each added to its input and then normalized."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        sizes = self.sizes
        dropout = functools.partial(nn.Dropout, sizes.dropout, deterministic=False)
        y = nn.MultiHeadDotProductAttention(
            sizes.heads,
            dropout_rate=sizes.dropout,
            broadcast_dropout=False,
            deterministic=False,
            kernel_init=INIT,
            attention_fn=named_attention(nn.dot_product_attention),
            name="attention",
        )(x, mask=mask)
        y = checkpoint_name(y, "out_proj")
        x = LayerNorm(name="attention_norm")(x + dropout()(y))
        y = checkpoint_name(Dense(4 * sizes.width, name="mlp_in")(x), "mlpwi")
        y = checkpoint_name(Dense(sizes.width, name="mlp_out")(gelu(y)), "mlpwo")
        return LayerNorm(name="mlp_norm")(x + dropout()(y))


class BERT(nn.Module):
    """Tokens, segments and the padding mask to a vocabulary of logits per position."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(
        self, tokens: jax.Array, segments: jax.Array, is_token: jax.Array
    ) -> jax.Array:
        sizes = self.sizes
        embedding = Embed(sizes.vocabulary, sizes.width, name="tokens")
        positions = Embed(sizes.sequence, sizes.width, name="positions")
        x = embedding(tokens) + positions(jnp.arange(tokens.shape[1]))
        x = x + Embed(sizes.segments, sizes.width, name="segments")(segments)
        x = LayerNorm(name="embedding_norm")(x)
        x = nn.Dropout(sizes.dropout, deterministic=False)(x)
        mask = nn.make_attention_mask(is_token, is_token, dtype=bool)
        wrapped = self.wrap(Layer, remat=nn.remat)
        for layer in range(sizes.layers):
            x = wrapped(sizes, name=f"layer_{layer}")(x, mask)
        x = gelu(Dense(sizes.width, name="head")(x))
        x = LayerNorm(name="head_norm")(x)
        bias = self.param("head_bias", nn.initializers.zeros, (sizes.vocabulary,))
        return embedding.attend(x) + bias


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """BERT Large's step: masked language modelling and Adam."""
    sizes = sizes or SIZES[scale]
    model = BERT(sizes, wrap)
    optimizer = optax.adam(LEARNING_RATE)

    def make_args(key):
        param_key, token_key, label_key, mask_key, dropout_key = jax.random.split(key, 5)
        shape = (sizes.batch, sizes.sequence)
        batch = {
            "tokens": batches.tokens(token_key, *shape, sizes.vocabulary),
            "segments": jnp.broadcast_to(
                (jnp.arange(sizes.sequence) >= sizes.sequence // 2).astype(jnp.int32),
                shape,
            ),
            "is_token": jnp.ones(shape, bool),
            "labels": batches.tokens(label_key, *shape, sizes.vocabulary),
            "is_masked": jax.random.bernoulli(mask_key, MASKED_FRACTION, shape),
        }
        params = model.init(
            {"params": param_key, "dropout": param_key},
            batch["tokens"],
            batch["segments"],
            batch["is_token"],
        )["params"]
        return TrainState(params, (), optimizer.init(params)), batch, dropout_key

    def step(state, batch, key):
        def loss_of(params):
            logits = model.apply(
                {"params": params},
                batch["tokens"],
                batch["segments"],
                batch["is_token"],
                rngs={"dropout": key},
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            )
            return jnp.mean(losses, where=batch["is_masked"])

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, (), optimizer_state), loss

    return TrainingStep.build("bert_large", scale, step, make_args)
