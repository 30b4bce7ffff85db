"""Steps that chose no tuned value: random ones, and two networks that no table uses."""

from __future__ import annotations

import functools
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from models.scanned_decoder import DecoderSizes, decoder_problem
from models.training import training_problem

sys.path.append(str(pathlib.Path(__file__).parent.parent.parent / "tests"))
import scanned_steps
from random_steps import random_step

Step = tuple[Callable, tuple, dict[str, Any]]
"""A step, its arguments, and options of `jax.jit`."""

SEEDS = range(1000, 1003)


class DenseNet(nn.Module):
    """Every convolution reads the results of all before it in its block (2017)."""

    growth: int
    layers: int

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        for block in range(2):
            for _ in range(self.layers):
                y = nn.relu(nn.GroupNorm(num_groups=1)(x))
                x = jnp.concatenate([x, nn.Conv(self.growth, (3, 3))(y)], -1)
            if block == 0:
                x = nn.avg_pool(nn.Conv(x.shape[-1] // 2, (1, 1))(x), (2, 2), (2, 2))
        return nn.Dense(10)(x.mean((1, 2)))


class GatedMlp(nn.Module):
    """Gated MLPs over tokens, with attention of a single head beside the gate (2021)."""

    layers: int
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        tokens, width = x.shape[-2:]
        for _ in range(self.layers):
            y = nn.LayerNorm()(x)
            u, v = jnp.split(nn.gelu(nn.Dense(4 * width)(y)), 2, axis=-1)
            v = nn.Dense(tokens)(v.swapaxes(1, 2)).swapaxes(1, 2)
            query, key, value = jnp.split(nn.Dense(3 * width)(y), 3, axis=-1)
            scores = nn.softmax(query @ key.swapaxes(1, 2) / width**0.5)
            y = nn.Dense(width)(u * v) + nn.Dense(width)(scores @ value)
            x = x + nn.Dropout(self.dropout, deterministic=not is_training)(y)
        return nn.Dense(10)(x.mean(1))


def _step(name: str, model: nn.Module, shape: tuple[int, ...], optimizer: Any) -> Step:
    inputs = jax.random.normal(jax.random.key(1), shape)
    labels = jax.random.randint(jax.random.key(2), shape[:1], 0, 10)
    problem = training_problem(name, model, (inputs, labels), optimizer)
    arguments = problem.state, problem.batch, problem.key
    return problem.train_step, arguments, {"donate_argnums": 0}


def densenet(batch: int = 16, image: int = 32, growth: int = 12, layers: int = 2) -> Step:
    shape = (batch, image, image, growth)
    return _step("densenet", DenseNet(growth, layers), shape, optax.sgd(0.1, momentum=0.9))


def gated_mlp(
    batch: int = 16,
    tokens: int = 64,
    width: int = 64,
    layers: int = 2,
    dropout: float = 0.0,
) -> Step:
    model = GatedMlp(layers, dropout)
    return _step("gated mlp", model, (batch, tokens, width), optax.adam(1e-3))


def scanned_decoder() -> Step:
    sizes = DecoderSizes(
        layers=8,
        width=64,
        hidden=192,
        heads=2,
        groups=1,
        vocabulary=256,
        batch=4,
        sequence=128,
    )
    return *decoder_problem(sizes), {"donate_argnums": 0}


_RANDOM = {f"random {seed}": functools.partial(random_step, seed) for seed in SEEDS}
STEPS: dict[str, dict[str, Callable[[], Step]]] = {
    "cpu": {**_RANDOM, "densenet": densenet, "gated mlp": gated_mlp},
    "loops": {
        "scanned decoder": scanned_decoder,
        "recurrent": lambda: (*scanned_steps.recurrent(), {"donate_argnums": 0}),
        "two loops": lambda: (*scanned_steps.two_loops(), {"donate_argnums": 0}),
    },
    # For values on which every plan depends: none is known from before.
    "random": _RANDOM,
    "graph": {**_RANDOM, "gated mlp": lambda: gated_mlp(layers=1, dropout=0.1)},
    "arena": {
        "random 1000": _RANDOM["random 1000"],
        "gated mlp": lambda: gated_mlp(layers=1),
    },
    # Large enough that not all of it lies on the chip.
    "h200": {
        "gated mlp": lambda: gated_mlp(64, 512, 512, 2),
        "gated mlp of one layer": lambda: gated_mlp(64, 512, 512, 1),
    },
    "tpu v5e": {
        "gated mlp": lambda: gated_mlp(64, 512, 512, 2),
        "gated mlp of one layer": lambda: gated_mlp(64, 512, 512, 1),
    },
}
