"""BiLSTM: a bidirectional LSTM that classifies sequences of word vectors.

Schuster & Paliwal, "Bidirectional Recurrent Neural Networks", 1997; the cell is that of
Hochreiter & Schmidhuber, 1997, with forget gates (Gers et al., 2000).

The paper's sizes: batch 2048, sequence 128, input 100, hidden 256. The task and the
optimizer are not published; here they are two classes, read off the last state of each
direction, and plain SGD.

Time is unrolled: each step's gates, cell and hidden state are tensors of the program,
so that they can be planned one by one. A `lax.scan` would be one opaque operation.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from paper.networks.training_step import (
    Scale,
    TrainingStep,
    TrainState,
    Wrap,
    as_written,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    batch: int = 2048
    sequence: int = 128
    inputs: int = 100
    hidden: int = 256
    classes: int = 2


SIZES = {
    Scale.PAPER: Sizes(),
    Scale.REDUCED: Sizes(batch=16, sequence=12, inputs=20, hidden=32),
}
LEARNING_RATE = 1e-3


def run_steps(recurrent: nn.Dense, from_inputs, hidden, cell):
    """Some time steps of an LSTM: what the inputs contribute to the hidden state, the
    cell and the hidden state before, to those after."""
    for from_input in from_inputs:
        gates = from_input + recurrent(hidden)
        enter, forget, update, leave = jnp.split(gates, 4, axis=-1)
        cell = nn.sigmoid(forget) * cell + nn.sigmoid(enter) * nn.tanh(update)
        hidden = nn.sigmoid(leave) * nn.tanh(cell)
    return hidden, cell


class UnrolledLSTM(nn.Module):
    """One direction: time-major inputs to the last hidden state.

    Attributes:
        hidden: size of the cell and of the hidden state.
        reverse: read the sequence from its end.
        wrap: applied to as many time steps at once as there are such blocks.
    """

    hidden: int
    reverse: bool = False
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        # The inputs of all steps in one product; only the recurrence is sequential.
        # `unstack`, not indexing: the gradient of 128 slices would be 128 padded
        # arrays of the full length, that of one `unstack` is one `stack`.
        projected = jnp.unstack(nn.Dense(4 * self.hidden, name="input")(inputs))
        recurrent = nn.Dense(
            4 * self.hidden,
            use_bias=False,
            kernel_init=nn.initializers.orthogonal(),
            name="recurrent",
        )
        hidden = cell = jnp.zeros((inputs.shape[1], self.hidden))
        steps = list(reversed(projected) if self.reverse else projected)
        block = math.isqrt(len(steps))
        run = self.wrap(run_steps, remat=nn.remat)
        for start in range(0, len(steps), block):
            hidden, cell = run(recurrent, steps[start : start + block], hidden, cell)
        return hidden


class BiLSTM(nn.Module):
    """Both directions, and a linear classifier of their last states."""

    sizes: Sizes
    wrap: Wrap = as_written

    @nn.compact
    def __call__(self, vectors: jax.Array) -> jax.Array:
        time_major = jnp.swapaxes(vectors, 0, 1)
        hidden, wrap = self.sizes.hidden, self.wrap
        forward = UnrolledLSTM(hidden, wrap=wrap, name="forward")
        backward = UnrolledLSTM(hidden, reverse=True, wrap=wrap, name="backward")
        states = jnp.concatenate([forward(time_major), backward(time_major)], axis=-1)
        return nn.Dense(self.sizes.classes, name="classifier")(states)


def training_step(
    scale: Scale, sizes: Sizes | None = None, wrap: Wrap = as_written
) -> TrainingStep:
    """The BiLSTM's step: cross-entropy and SGD."""
    sizes = sizes or SIZES[scale]
    model = BiLSTM(sizes, wrap)
    optimizer = optax.sgd(LEARNING_RATE)

    def make_args(key):
        param_key, vector_key, label_key = jax.random.split(key, 3)
        vectors = jax.random.normal(vector_key, (sizes.batch, sizes.sequence, sizes.inputs))
        labels = jax.random.randint(label_key, (sizes.batch,), 0, sizes.classes)
        params = model.init(param_key, vectors)["params"]
        state = TrainState(params, (), optimizer.init(params))
        return state, {"vectors": vectors, "labels": labels}

    def step(state, batch):
        def loss_of(params):
            logits = model.apply({"params": params}, batch["vectors"])
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, batch["labels"]
            ).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        updates, optimizer_state = optimizer.update(
            gradients, state.optimizer, state.params
        )
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, (), optimizer_state), loss

    return TrainingStep.build("bilstm", scale, step, make_args)
