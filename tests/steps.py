"""Small training steps and helpers that the tests share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coop_jax import PlanOptions, backends
from coop_jax.backends.backend import Backend
from coop_jax.base import _compat
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.plan.planner import plan_pool, unconstrained
from coop_jax.search.placements import XlaPlacement
from coop_jax.targets import Target
from coop_jax.trace.program import Program

TARGET = Target("test", "cpu", {32: 1e11, 16: 1e11}, 1e10, 64)

ADAM = optax.adam(1e-3)

# The default planner where a test needs no good plan: it takes a tenth of the time.
QUICK = PlanOptions(search_effort=100_000)

# XLA:CPU generates slower code in less time, of the same buffers.
LITTLE_CODE = {"xla_backend_optimization_level": 0}


def names_and_types(names, in_full="convnet"):
    """Parameters of slow tests that train: for every change one network in half precision,
    and one in full, if it is named; the others by hand."""
    by_hand = pytest.mark.hand
    full = [
        pytest.param(n, "float32", marks=() if n == in_full else by_hand) for n in names
    ]
    return [*full, ("transformer", "bfloat16")]


# To compile for a device that is not there; `conftest.py` skips it without the compiler.
NEEDS_CUDA = pytest.mark.absent("cuda")
NEEDS_TPU = pytest.mark.absent("tpu")


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


def adam_step(weights, state, x):
    """A residual network of feed-forward blocks, as in a transformer."""

    def loss(weights):
        hidden = x
        for up, down in weights:
            hidden = hidden + jax.nn.gelu(hidden @ up) @ down
        return jnp.mean(hidden**2)

    gradients = jax.grad(loss)(weights)
    updates, state = ADAM.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state


def adam_shapes(blocks=4, batch=4096, width=512):
    """Types of the arguments: no array is made."""
    up = jax.ShapeDtypeStruct((width, 4 * width), "float32")
    down = jax.ShapeDtypeStruct((4 * width, width), "float32")
    weights = [(up, down)] * blocks
    state = jax.eval_shape(ADAM.init, weights)
    return weights, state, jax.ShapeDtypeStruct((batch, width), "float32")


def pooled_step(weights, images):
    """Convolutions, each with `relu`, and poolings in between; gradient descent."""

    def loss(weights):
        x = images
        for level in weights:
            for w in level:
                x = jax.lax.conv_general_dilated(
                    x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                x = jax.nn.relu(x)
            window = (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        return jnp.square(x).mean()

    gradients = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def pooled_arguments(batch=4, image=32, channels=8, levels=2, depth=3):
    keys = iter(jax.random.split(jax.random.key(0), levels * depth + 1))
    shape = (3, 3, channels, channels)
    weights = [
        [0.3 * jax.random.normal(next(keys), shape) for _ in range(depth)]
        for _ in range(levels)
    ]
    return weights, jax.random.normal(next(keys), (batch, image, image, channels))


def traced(fn, *args, **jit_options) -> TracedStep:
    return TracedStep.trace(
        fn,
        jit_options,
        args,
        {},
    )


def compiled_graph(step: TracedStep) -> StepGraph:
    """The graph as the front door makes it: from a compile of the tagged program."""
    compiled = step.compile(stored_values.tag(step.program))
    return build_graph(step.program, backends.stored_values(step.program, compiled), TARGET)


def planned_program(step: TracedStep, backend: Backend, part: float) -> Program:
    """The rewritten program under a part of its live bytes, with a backend's hints."""
    graph = compiled_graph(step)
    options = PlanOptions(policy="search", limits_live_bytes=True)
    largest = unconstrained(graph, options).statistics.max_live_bytes
    schedule = plan_pool(graph, int(part * largest), options)
    assert schedule is not None
    segments = cut(graph, schedule, fence_free_inputs=False)
    return rewrite(graph, segments, backend.fence_hints(step.program, None))


def xla_placement(
    program: Program, platform: str, stored: StoredValues | None = None
) -> XlaPlacement:
    """The placement of a step by XLA, as on a platform."""
    backend = backends.named(platform)
    return XlaPlacement(backend, backend.fence_hints(program, stored))


def run(program: Program, arguments: Any) -> Any:
    """Equation by equation: XLA fuses nothing, so that equal programs give equal bits."""
    function = _compat.jaxpr_as_fun(program.to_jaxpr())
    return function(*jax.tree.leaves(arguments))


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
