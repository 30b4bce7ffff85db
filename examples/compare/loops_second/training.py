"""What the steps with loops share: wrapping of bodies, optimizers, random arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Step = tuple[Callable, tuple]
Body = Callable[..., Any]


def wrapped(body: Body, policy: Any) -> Body:
    """The body of a loop under a `jax.checkpoint` policy; None: as it is."""
    if policy is None:
        return body
    return jax.checkpoint(body, policy=policy, prevent_cse=False)


def normal(*shape: int, seed: int = 0, scale: float = 0.05) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(seed), shape)


def adam(loss: Callable, params: Any, *batch: Any) -> Step:
    """A step of Adam on `loss(params, *batch)`; its state is the first argument."""
    optimizer = optax.adam(1e-3)

    def step(state: Any, *batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return step, ((params, optimizer.init(params)), *batch)


def descent(loss: Callable, params: Any, *batch: Any) -> Step:
    """A step of gradient descent on `loss(params, *batch)`."""

    def step(params: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), value

    return step, (params, *batch)


def half(tree: Any) -> Any:
    """Floats as bfloat16."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.var(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6) * scale
