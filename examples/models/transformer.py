"""Transformer: a decoder-only language model with pre-layer-norm blocks (GPT-2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike

_GPT2_INIT = nn.initializers.normal(stddev=0.02)


class Block(nn.Module):
    """Causal self-attention and a GELU MLP, each on a residual branch."""

    num_heads: int
    dropout_rate: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        width = x.shape[-1]

        def dropout(y: jax.Array) -> jax.Array:
            return nn.Dropout(self.dropout_rate, deterministic=not is_training)(y)

        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.MultiHeadDotProductAttention(
            num_heads=self.num_heads,
            dropout_rate=self.dropout_rate,
            deterministic=not is_training,
            kernel_init=_GPT2_INIT,
            dtype=self.dtype,
        )(y, mask=nn.make_causal_mask(x[..., 0]))
        x = x + dropout(y)

        y = nn.LayerNorm(dtype=self.dtype)(x)
        y = nn.Dense(4 * width, kernel_init=_GPT2_INIT, dtype=self.dtype)(y)
        y = nn.gelu(y)
        y = nn.Dense(width, kernel_init=_GPT2_INIT, dtype=self.dtype)(y)
        return x + dropout(y)


class Transformer(nn.Module):
    """Tokens `[batch, sequence]` to next-token logits `[batch, sequence, vocab]`.

    Attributes:
        vocab_size, num_layers, width, num_heads: the architecture.
        dropout_rate: on attention weights, residual branches and embeddings.
        checkpoint_blocks: wrap each block in `jax.checkpoint` with nothing saved: the
            usual hand-placed rematerialization, for comparison.
        dtype: of activations; parameters and logits are float32.
    """

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    dropout_rate: float = 0.1
    checkpoint_blocks: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array, is_training: bool) -> jax.Array:
        length = tokens.shape[-1]
        positions = self.param("positions", _GPT2_INIT, (length, self.width))
        x = nn.Embed(
            self.vocab_size, self.width, embedding_init=_GPT2_INIT, dtype=self.dtype
        )(tokens)
        x = x + positions.astype(self.dtype)
        x = nn.Dropout(self.dropout_rate, deterministic=not is_training)(x)

        block = Block
        if self.checkpoint_blocks:
            block = nn.remat(
                Block,
                static_argnums=2,  # `is_training`; argument 0 is the module
                policy=jax.checkpoint_policies.nothing_saveable,
            )
        for idx in range(self.num_layers):
            x = block(self.num_heads, self.dropout_rate, self.dtype, name=f"block_{idx}")(
                x, is_training
            )

        x = nn.LayerNorm(dtype=self.dtype)(x)
        # The loss wants float32: a bfloat16 log-sum-exp over the words is too coarse.
        return nn.Dense(self.vocab_size, use_bias=False, kernel_init=_GPT2_INIT)(
            x.astype(jnp.float32)
        )
