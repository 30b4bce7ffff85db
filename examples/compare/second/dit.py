"""DiT: a diffusion transformer whose blocks are modulated by timestep and class.

Peebles and Xie, "Scalable Diffusion Models with Transformers", 2023: patches of latents,
adaptive layer normalization that starts at zero (adaLN-zero), labels dropped at random
for guidance. The loss is that of Ho et al., 2020 (predict the noise, linear schedule of
1000 steps); AdamW and a moving average of the weights. The base width, six layers,
products in bfloat16 (float32 on CPU).
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
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)

LEARNING_RATE = 1e-4
DECAY = 0.9999  # of the averaged weights
TIMESTEPS = 1000
DROPPED_LABELS = 0.1
FREQUENCIES = 256


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 64
    latent: int = 32
    channels: int = 4
    patch: int = 2
    width: int = 768
    layers: int = 6
    heads: int = 12
    classes: int = 1000
    dtype: Any = jnp.bfloat16


def modulated(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """`x[batch, token, channel]` scaled and shifted by the condition of its example."""
    return x * (1 + scale[:, None]) + shift[:, None]


class Modulation(nn.Module):
    """Shifts, scales and gates from the condition; zero at first."""

    number: int
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, condition: jax.Array) -> list[jax.Array]:
        zeros = nn.initializers.zeros
        dense = nn.Dense(self.number * self.width, kernel_init=zeros, dtype=self.dtype)
        return jnp.split(dense(nn.silu(condition)), self.number, axis=-1)


class Block(nn.Module):
    """Self-attention and an MLP, each between a modulated norm and a gate."""

    sizes: Sizes

    @nn.compact
    def __call__(self, x: jax.Array, condition: jax.Array) -> jax.Array:
        width, dtype = self.sizes.width, self.sizes.dtype

        def norm(name):
            return nn.LayerNorm(use_scale=False, use_bias=False, dtype=dtype, name=name)

        shift, scale, gate, *of_mlp = Modulation(6, width, dtype)(condition)
        y = modulated(norm("attention_norm")(x), shift, scale)
        attention = Attention(self.sizes.heads, dtype, use_bias=True, name="attention")
        x = x + gate[:, None] * attention(y)
        shift, scale, gate = of_mlp
        y = modulated(norm("mlp_norm")(x), shift, scale)
        y = nn.Dense(4 * width, dtype=dtype, name="mlp_in")(y)
        y = nn.gelu(checkpoint_name(y, "mlpwi"))
        y = nn.Dense(width, dtype=dtype, name="mlp_out")(y)
        return x + gate[:, None] * checkpoint_name(y, "mlpwo")


class DiT(nn.Module):
    """Noised latents, timesteps and labels to the noise."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(
        self, latents: jax.Array, timesteps: jax.Array, labels: jax.Array
    ) -> jax.Array:
        sizes, dtype = self.sizes, self.sizes.dtype
        patch = (sizes.patch, sizes.patch)
        x = nn.Conv(sizes.width, patch, patch, padding="VALID", dtype=dtype)(latents)
        side = x.shape[1]
        x = x.reshape(x.shape[0], side**2, sizes.width)
        init = nn.initializers.normal(0.02)
        x = x + self.param("positions", init, (side**2, sizes.width)).astype(dtype)
        half = FREQUENCIES // 2
        angles = timesteps[:, None] * 1e4 ** (-jnp.arange(half) / half)
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        condition = nn.silu(nn.Dense(sizes.width, dtype=dtype, name="time_in")(waves))
        condition = nn.Dense(sizes.width, dtype=dtype, name="time_out")(condition)
        # One more than there are classes: no label.
        embed = nn.Embed(sizes.classes + 1, sizes.width, dtype=dtype, name="labels")
        condition = condition + embed(labels)
        block = self.wrap(Block, remat=nn.remat)
        for number in range(sizes.layers):
            x = block(sizes, name=f"block_{number}")(x, condition)
        shift, scale = Modulation(2, sizes.width, dtype, name="last")(condition)
        x = nn.LayerNorm(use_scale=False, use_bias=False, dtype=dtype, name="norm")(x)
        x = modulated(x, shift, scale)
        x = nn.Dense(sizes.patch**2 * sizes.channels, dtype=dtype, name="head")(x)
        x = x.reshape(-1, side, side, *patch, sizes.channels).swapaxes(2, 3)
        return x.reshape(latents.shape).astype(jnp.float32)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """Mean squared error of the noise; AdamW; averaged weights in `state.statistics`."""
    sizes = sizes or Sizes()
    model = DiT(sizes, wrap)
    optimizer = optax.adamw(LEARNING_RATE, weight_decay=0.0)

    def make_args(key):
        param_key, latent_key, label_key, noise_key = jax.random.split(key, 4)
        shape = (sizes.batch, sizes.latent, sizes.latent, sizes.channels)
        batch = {
            "latents": jax.random.normal(latent_key, shape),
            "labels": jax.random.randint(label_key, (sizes.batch,), 0, sizes.classes),
        }
        variables = model.init(
            param_key, batch["latents"], jnp.zeros(sizes.batch), batch["labels"]
        )
        params = variables["params"]
        averaged = jax.tree.map(jnp.copy, params)
        return TrainState(params, averaged, optimizer.init(params)), batch, noise_key

    def step(state, batch, key):
        time_key, noise_key, label_key = jax.random.split(key, 3)
        latents = batch["latents"]
        timesteps = jax.random.randint(time_key, (sizes.batch,), 0, TIMESTEPS)
        noise = jax.random.normal(noise_key, latents.shape)
        kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, TIMESTEPS))[timesteps]
        kept = kept[:, None, None, None]
        noised = jnp.sqrt(kept) * latents + jnp.sqrt(1 - kept) * noise
        is_dropped = jax.random.bernoulli(label_key, DROPPED_LABELS, (sizes.batch,))
        labels = jnp.where(is_dropped, sizes.classes, batch["labels"])

        def loss_of(params):
            predicted = model.apply({"params": params}, noised, timesteps, labels)
            return jnp.mean((predicted - noise) ** 2), ()

        stepped, loss = gradient_step(optimizer, state, loss_of)
        averaged = optax.incremental_update(stepped.params, state.statistics, 1 - DECAY)
        return stepped._replace(statistics=averaged), loss

    return TrainingStep.build("dit", scale, step, make_args)
