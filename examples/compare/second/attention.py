"""Multi-head attention of the second set's transformers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from paper.networks.training_step import named_attention


def rotated(x: jax.Array, base: float = 10000.0) -> jax.Array:
    """Queries or keys `[batch, position, head, depth]` turned by their position (RoPE)."""
    depth = x.shape[-1]
    frequencies = base ** (-jnp.arange(0, depth, 2) / depth)
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


class Attention(nn.Module):
    """Attention of `x` to itself, or to `context`.

    Attributes:
        heads: number of heads.
        dtype: of the products; parameters are float32.
        rotary: positions by rotation of queries and keys.
        use_bias: add biases to the four projections.
    """

    heads: int
    dtype: Any = jnp.float32
    rotary: bool = False
    use_bias: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        context: jax.Array | None = None,
        *,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        width = x.shape[-1]
        project = functools.partial(
            nn.DenseGeneral, dtype=self.dtype, use_bias=self.use_bias
        )
        to_heads = functools.partial(project, (self.heads, width // self.heads))
        source = x if context is None else context
        query = to_heads(name="query")(x)
        key = to_heads(name="key")(source)
        value = to_heads(name="value")(source)
        if self.rotary:
            query, key = rotated(query), rotated(key)
        attend = named_attention(nn.dot_product_attention)
        y = attend(query, key, value, bias=bias, mask=mask, dtype=self.dtype)
        y = project(width, axis=(-2, -1), name="out")(y)
        return checkpoint_name(y, "out_proj")
