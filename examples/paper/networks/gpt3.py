"""GPT-3 style, 2.7B: a decoder-only language model.

Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1, the model called
2.7B: 32 layers of width 2560, 32 heads, pre-layer normalization, learned positions,
tied embeddings. All attention is dense. 2.65 billion parameters.

The paper's sizes: batch 2, sequence 1024. Dropout as in the authors' script: 0.1 on the
embeddings and on the attention probabilities, none on the residuals.

Everything is float32 (their script turns mixed precision off), and the optimizer is
plain SGD. Theirs did nothing at all, which leaves the gradients without a reader, and a
step without readers of its gradients would be planned as a forward pass. Of the
optimizers that do update, SGD alone keeps no state, so parameters and gradients are all
the memory that cannot be recomputed, as it was for them. Adam would add two copies of
the parameters, 21 GB, to that.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import optax
from flax import nnx
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
    batch: int = 2
    sequence: int = 1024
    vocabulary: int = 50257
    width: int = 2560
    layers: int = 32
    heads: int = 32
    dropout: float = 0.1


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(batch=4, sequence=32, vocabulary=257, width=64, layers=3, heads=4),
}
LEARNING_RATE = 1.5e-4
INIT = nnx.initializers.normal(0.02)


class Block(nnx.Module):
    """Causal self-attention and an MLP, each pre-normalized and added to its input."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        width = sizes.width
        # Into the residual, weights are smaller by the number of summands (GPT-2).
        to_residual = nnx.initializers.normal(0.02 / (2 * sizes.layers) ** 0.5)
        self.attention_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            sizes.heads,
            width,
            dropout_rate=sizes.dropout,
            broadcast_dropout=False,
            deterministic=False,
            decode=False,
            attention_fn=named_attention(nnx.dot_product_attention),
            kernel_init=INIT,
            out_kernel_init=to_residual,
            rngs=rngs,
            keep_rngs=False,
        )
        self.mlp_norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)
        self.mlp_in = nnx.Linear(width, 4 * width, kernel_init=INIT, rngs=rngs)
        self.mlp_out = nnx.Linear(4 * width, width, kernel_init=to_residual, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        y = self.attention(self.attention_norm(x), mask=mask, rngs=rngs)
        x = x + checkpoint_name(y, "out_proj")
        y = checkpoint_name(self.mlp_in(self.mlp_norm(x)), "mlpwi")
        return x + checkpoint_name(self.mlp_out(nnx.gelu(y)), "mlpwo")


class GPT(nnx.Module):
    """Tokens to the logits of their successors."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, wrap: Wrap = as_written):
        self.apply = wrap(Block.__call__, remat=nnx.remat)
        width = sizes.width
        self.tokens = nnx.Embed(sizes.vocabulary, width, embedding_init=INIT, rngs=rngs)
        self.positions = nnx.Embed(sizes.sequence, width, embedding_init=INIT, rngs=rngs)
        self.dropout = nnx.Dropout(sizes.dropout)
        self.blocks = nnx.List(Block(sizes, rngs) for _ in range(sizes.layers))
        self.norm = nnx.LayerNorm(width, epsilon=1e-5, rngs=rngs)

    def __call__(self, tokens: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        length = tokens.shape[1]
        mask = jnp.tril(jnp.ones((1, 1, length, length), bool))
        x = self.tokens(tokens) + self.positions(jnp.arange(length))
        x = self.dropout(x, rngs=rngs)
        for block in self.blocks:
            x = self.apply(block, x, mask, rngs)
        return self.tokens.attend(self.norm(x))


def training_step(
    scale: Scale,
    sizes: Sizes | None = None,
    wrap: Wrap = as_written,
    optimizer: optax.GradientTransformation | None = None,
) -> TrainingStep:
    """GPT-3 2.7B's step: next-token cross-entropy and SGD."""
    sizes = sizes or SIZES[scale]
    optimizer = optimizer or optax.sgd(LEARNING_RATE)

    def split_model(key):
        return nnx.split(GPT(sizes, nnx.Rngs(key), wrap), nnx.Param)

    graph, _ = jax.eval_shape(split_model, jax.random.key(0))

    def make_args(key):
        param_key, token_key, dropout_key = jax.random.split(key, 3)
        _, params = split_model(param_key)
        # One more than the model reads: every position has a successor to predict.
        tokens = batches.tokens(
            token_key, sizes.batch, sizes.sequence + 1, sizes.vocabulary
        )
        state = TrainState(params, (), optimizer.init(params))
        return state, {"tokens": tokens}, dropout_key

    def step(state, batch, key):
        inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]

        def loss_of(params):
            logits = nnx.merge(graph, params)(inputs, nnx.Rngs(dropout=key))
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, (), optimizer_state), loss

    return TrainingStep.build("gpt3", scale, step, make_args)
