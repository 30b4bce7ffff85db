"""The end that all training steps have in common: gradients, and the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax
from paper.networks.training_step import TrainState

LossOf = Callable[[Any], tuple[jax.Array, Any]]


def gradient_step(
    optimizer: optax.GradientTransformation, state: TrainState, loss_of: LossOf
) -> tuple[TrainState, jax.Array]:
    """The state after one step, and the loss before it.

    Arguments:
        loss_of: parameters to the loss, a scalar, and the new `state.statistics`.
    """
    (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(params, statistics, optimizer_state), loss
