"""Small training steps and helpers that the tests share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax import materialize
from coop_jax.graph import StepGraph, build_graph
from coop_jax.pipeline import TracedStep
from coop_jax.targets import Target

TARGET = Target("test", "cpu", {32: 1e11, 16: 1e11}, 1e10, 64)


def mlp_step(weights, x):
    """SGD step of a residual MLP: the larger the batch, the more there is to save."""

    def loss(weights):
        hidden = x
        for w in weights:
            hidden = hidden + jnp.tanh(hidden @ w)
        return jnp.mean(hidden**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


def mlp_arguments(layers: int = 8, batch: int = 512, width: int = 64, dtype="float32"):
    random = np.random.default_rng(0)
    weights = [
        jnp.asarray(random.normal(size=(width, width)) * 0.1, dtype) for _ in range(layers)
    ]
    return weights, jnp.asarray(random.normal(size=(batch, width)), dtype)


def traced(fn, *args, **jit_options) -> TracedStep:
    return TracedStep.trace(
        fn, jit_options, args, {}, lambda positional, named: (positional, named)
    )


def compiled_graph(step: TracedStep) -> StepGraph:
    """The graph as the front door makes it: from a compile of the tagged program."""
    compiled = step.compile(materialize.tag(step.program))
    return build_graph(
        step.program, materialize.of_compiled(step.program, compiled), TARGET
    )


def copied(tree: Any) -> Any:
    """Fresh buffers, so that donation does not consume the original."""
    return jax.tree.map(lambda leaf: leaf.copy(), tree)


def as_numpy(leaf: Any) -> np.ndarray:
    leaf = jnp.asarray(leaf)
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def assert_trees_equal(first: Any, second: Any) -> None:
    """Equal structure, types and bits."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        np.testing.assert_array_equal(as_numpy(a), as_numpy(b))


def largest_difference(first: Any, second: Any) -> float:
    return max(
        float(
            np.max(np.abs(as_numpy(a).astype("f8") - as_numpy(b).astype("f8")), initial=0)
        )
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )
