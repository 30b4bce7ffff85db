"""Sharding styles: one training step of a Flax model, divided over a mesh in several ways.

    problem = MODELS["decoder"]()
    step, args = sharded(problem, "fsdp", mesh_devices)

The steps compute the same: only where arrays lie, and who says so, differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from models import TrainingProblem, convnet_problem, transformer_problem

# Of the decoder. Gradients of the keys' biases are zero but for roundings; with Adam's
# usual `eps` the update would be as large as that of any weight, of a random sign.
_EPSILON = 1e-5

STYLES = {
    "data": "the batch over 8 devices",
    "fsdp": "batch, and weights and moments on their first axis, over 8 devices",
    "last axis": "batch, and weights and moments on their last axis, over 8 devices",
    "data x tensor": "batch over 4, weights on their last axis over 2; "
    "`with_sharding_constraint`",
    "shard_map": "the batch over 8 devices, a `shard_map` body that averages gradients",
}


def decoder(**sizes: Any) -> TrainingProblem:
    """A decoder of unrolled layers, with AdamW."""
    given: dict[str, Any] = {
        "num_layers": 3,
        "width": 128,
        "num_heads": 4,
        "vocab_size": 256,
        "batch_size": 16,
        "sequence_length": 64,
        "optimizer": optax.adamw(1e-3, eps=_EPSILON),
    }
    return transformer_problem(dropout_rate=0.0, **{**given, **sizes})


def convolutional(**sizes: Any) -> TrainingProblem:
    """A residual convolutional net with batch normalisation, with momentum."""
    given: dict[str, Any] = {
        "stage_sizes": (1, 1),
        "width": 32,
        "image_size": 16,
        "batch_size": 32,
        "optimizer": optax.sgd(0.02, momentum=0.9),
    }
    return convnet_problem(**{**given, **sizes})


MODELS: dict[str, Callable[..., TrainingProblem]] = {
    "decoder": decoder,
    "convolutional": convolutional,
}


def styles_of(model: str) -> tuple[str, ...]:
    """The styles of a model: a `shard_map` body would have batch statistics of its own."""
    return tuple(s for s in STYLES if s != "shard_map" or model == "decoder")


def sharded(model: str, style: str, devices: Any, **sizes: Any) -> tuple[Callable, tuple]:
    """A step `(state, batch, key) -> (state, loss)` and arguments placed on a mesh.

    Arguments:
        model: of `MODELS`.
        style: of `styles_of(model)`.
        devices: of the mesh, an even number.
        sizes: of the model, in place of its own.
    """
    problem = MODELS[model](**sizes)
    if style == "shard_map":
        return _mapped(model, devices, sizes)
    shape, axis = {"data x tensor": ((-1, 2), "tensor")}.get(style, ((-1, 1), "data"))
    mesh = Mesh(np.array(devices).reshape(shape), ("data", "tensor"))

    def spec(x: Any) -> P:
        which = {"fsdp": 0, "data": None}.get(style, x.ndim - 1)
        if which is None or not x.ndim or x.shape[which] % mesh.shape[axis]:
            return P()
        return P(*[None] * which, axis)

    def place(x: Any) -> Any:
        return jax.device_put(x, NamedSharding(mesh, spec(x)))

    args = jax.tree.map(place, problem.state), *_batch(problem, mesh)
    if style != "data x tensor":
        return problem.train_step, args

    def step(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        rows = NamedSharding(mesh, P("data"))
        batch = jax.lax.with_sharding_constraint(batch, rows)
        state, loss = problem.train_step(state, batch, key)
        divided = jax.tree.map(lambda x: NamedSharding(mesh, spec(x)), state)
        return jax.lax.with_sharding_constraint(state, divided), loss

    return step, args


def _mapped(model: str, devices: Any, sizes: dict[str, Any]) -> tuple[Callable, tuple]:
    """The step of one device, which averages the gradients of all, in a `shard_map`."""
    optimizer = optax.chain(_averaged("data"), optax.adamw(1e-3, eps=_EPSILON))
    problem = MODELS[model](optimizer=optimizer, **sizes)
    mesh = Mesh(np.array(devices), ("data",))

    def local(state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        state, loss = problem.train_step(state, batch, key)
        return state, jax.lax.pmean(loss, "data")

    step = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P("data"), P()),
        out_specs=(P(), P()),
        check_vma=False,
    )
    everywhere = NamedSharding(mesh, P())
    return step, (jax.device_put(problem.state, everywhere), *_batch(problem, mesh))


def _averaged(axis: str) -> optax.GradientTransformation:
    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        return jax.lax.pmean(grads, axis), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _batch(problem: TrainingProblem, mesh: Mesh) -> tuple[Any, Any]:
    """The batch divided along its first axis, and the key on all devices."""
    batch = jax.device_put(problem.batch, NamedSharding(mesh, P("data")))
    return batch, jax.device_put(problem.key, NamedSharding(mesh, P()))
