"""Training: full training steps, pure functions from state to state, of the networks.

    problem = transformer_problem(num_layers=6)
    step = jax.jit(problem.train_step, donate_argnums=0)
    state, loss = step(problem.fresh_state(), problem.batch, problem.key)

A step holds everything that takes memory when training: forward, backward, and the
optimizer's update. Sizes are arguments, arrays come from a seed, and a problem with the
same arguments is always the same problem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.typing import DTypeLike

from .convnet import ConvNet
from .mixer import Mixer
from .transformer import Transformer

Batch = tuple[jax.Array, jax.Array]


class TrainState(NamedTuple):
    """The arrays that a step replaces, and that are therefore donated to it.

    `batch_stats` holds the running averages of batch normalisation; empty without it.
    """

    params: Any
    batch_stats: Any
    opt_state: optax.OptState


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingProblem:
    """A training step with arguments to call it with.

    Attributes:
        name: for tables.
        train_step: `(state, batch, key) -> (state, loss)`. A pure function, not jitted;
            `batch` is `(inputs, labels)`, `key` drives the dropout.
        predict: `(state, inputs) -> logits`, as evaluated rather than trained.
        state: the initial state. Donating it ends it: see `fresh_state`.
        batch: one batch, drawn at random.
        key: a key for the step.
    """

    name: str
    train_step: Callable[[TrainState, Batch, jax.Array], tuple[TrainState, jax.Array]]
    predict: Callable[[TrainState, jax.Array], jax.Array]
    state: TrainState
    batch: Batch
    key: jax.Array

    def fresh_state(self) -> TrainState:
        """A copy of the initial state, to be donated."""
        return jax.tree.map(jnp.copy, self.state)


def training_problem(
    name: str,
    model: nn.Module,
    batch: Batch,
    optimizer: optax.GradientTransformation,
    seed: int = 0,
) -> TrainingProblem:
    """The training of a classifier, of images or of next tokens.

    Arguments:
        name: for tables.
        model: called as `model(inputs, is_training)`; returns logits.
        batch: inputs, and labels of one dimension less than the logits.
        optimizer: of optax.
        seed: for parameters and dropout.
    """
    init_key, step_key = jax.random.split(jax.random.key(seed))

    def train_step(
        state: TrainState, batch: Batch, key: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        inputs, labels = batch

        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            logits, updates = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                inputs,
                True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), updates.get("batch_stats", {})

        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, batch_stats, opt_state), loss

    def predict(state: TrainState, inputs: jax.Array) -> jax.Array:
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return model.apply(variables, inputs, False)

    @jax.jit  # Op by op, initialisation would compile hundreds of small programs.
    def init(key: jax.Array, inputs: jax.Array) -> TrainState:
        variables = model.init(key, inputs, False)
        params = variables["params"]
        return TrainState(params, variables.get("batch_stats", {}), optimizer.init(params))

    return TrainingProblem(
        name, train_step, predict, init(init_key, batch[0]), batch, step_key
    )


def transformer_problem(
    *,
    num_layers: int = 6,
    width: int = 192,
    num_heads: int = 6,
    vocab_size: int = 256,
    batch_size: int = 8,
    sequence_length: int = 128,
    dropout_rate: float = 0.1,
    checkpoint_blocks: bool = False,
    dtype: DTypeLike = jnp.float32,
    optimizer: optax.GradientTransformation | None = None,
    seed: int = 0,
) -> TrainingProblem:
    """A decoder-only language model; Adam unless another optimizer is given."""
    model = Transformer(
        vocab_size, num_layers, width, num_heads, dropout_rate, checkpoint_blocks, dtype
    )
    tokens = jax.random.randint(
        jax.random.key(seed + 1), (batch_size, sequence_length + 1), 0, vocab_size
    )
    return training_problem(
        f"transformer, {num_layers} layers",
        model,
        (tokens[:, :-1], tokens[:, 1:]),
        optimizer or optax.adam(1e-3),
        seed,
    )


def convnet_problem(
    *,
    stage_sizes: Sequence[int] = (2, 2, 2),
    width: int = 32,
    image_size: int = 32,
    num_channels: int = 3,
    num_classes: int = 10,
    batch_size: int = 64,
    dtype: DTypeLike = jnp.float32,
    optimizer: optax.GradientTransformation | None = None,
    seed: int = 0,
) -> TrainingProblem:
    """A residual convolutional net; SGD with momentum unless another optimizer is given."""
    model = ConvNet(num_classes, tuple(stage_sizes), width, dtype)
    batch = _random_images(batch_size, image_size, num_channels, num_classes, seed)
    return training_problem(
        f"residual conv net, {sum(stage_sizes)} blocks",
        model,
        batch,
        optimizer or optax.sgd(0.1, momentum=0.9),
        seed,
    )


def mixer_problem(
    *,
    num_layers: int = 6,
    width: int = 192,
    image_size: int = 32,
    patch_size: int = 4,
    num_channels: int = 3,
    num_classes: int = 10,
    batch_size: int = 32,
    dtype: DTypeLike = jnp.float32,
    optimizer: optax.GradientTransformation | None = None,
    seed: int = 0,
) -> TrainingProblem:
    """An MLP-Mixer; AdamW unless another optimizer is given."""
    model = Mixer(num_classes, num_layers, width, patch_size, dtype)
    batch = _random_images(batch_size, image_size, num_channels, num_classes, seed)
    return training_problem(
        f"MLP-Mixer, {num_layers} layers",
        model,
        batch,
        optimizer or optax.adamw(1e-3),
        seed,
    )


def _random_images(
    batch_size: int, image_size: int, num_channels: int, num_classes: int, seed: int
) -> Batch:
    image_key, label_key = jax.random.split(jax.random.key(seed + 1))
    shape = batch_size, image_size, image_size, num_channels
    return (
        jax.random.normal(image_key, shape),
        jax.random.randint(label_key, (batch_size,), 0, num_classes),
    )
