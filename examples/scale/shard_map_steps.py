"""Shard map steps: training steps that say themselves what devices send each other.

The `shard_map` is a part of each step, as users write it: the gradient is taken through it,
and the optimizer, Adam, is outside. Each is a function of a mesh, of sizes and of `wrap`,
which its layers are put through; it returns the step `(state, x) -> (state, loss)` and
what it takes, as shapes with shardings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

_OPTIMIZER = optax.adam(1e-3)
_HEADS = 8


def _shapes(mesh: Any, spec: P, **shapes: tuple[int, ...]) -> dict[str, Any]:
    sharding = NamedSharding(mesh, spec)
    return {
        n: jax.ShapeDtypeStruct(s, "float32", sharding=sharding) for n, s in shapes.items()
    }


def _trained(loss: Callable, weights: Any, x: Any) -> tuple[Callable, tuple]:
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        weights, moments = state
        value, grads = jax.value_and_grad(loss)(weights, x)
        updates, moments = _OPTIMIZER.update(grads, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    by_shape = {w.shape: w.sharding for w in jax.tree.leaves(weights)}
    everywhere = NamedSharding(x.sharding.mesh, P())
    moments = jax.tree.map(
        lambda m: jax.ShapeDtypeStruct(
            m.shape, m.dtype, sharding=by_shape.get(m.shape, everywhere)
        ),
        jax.eval_shape(_OPTIMIZER.init, weights),
    )
    return step, ((weights, moments), x)


def ring_attention(
    mesh: Any, wrap: Callable, layers: int, batch: int, length: int, width: int
) -> tuple[Callable, tuple]:
    """A scanned decoder whose sequence is divided: keys and values travel in a ring, and
    weights are gathered (FSDP), all in one `shard_map` that returns the loss."""
    count = mesh.shape["d"]
    around = [(i, (i + 1) % count) for i in range(count)]

    def attention(q: Any, k: Any, v: Any) -> Any:
        def hop(carry: Any, _: Any) -> tuple[Any, None]:
            k, v, largest, total, sums = carry
            logits = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
            new = jnp.maximum(largest, logits.max(-1))
            weights = jnp.exp(logits - new[..., None])
            scale = jnp.exp(largest - new)
            sums = sums * jnp.moveaxis(scale, 1, 2)[..., None]
            sums = sums + jnp.einsum("bhts,bshd->bthd", weights, v)
            total = total * scale + weights.sum(-1)
            return (*(lax.ppermute(x, "d", around) for x in (k, v)), new, total, sums), None

        none = jnp.zeros_like(jnp.moveaxis(q[..., 0], 1, 2))
        first = (k, v, none - 1e9, none, jnp.zeros_like(q))
        (_, _, _, total, sums), _ = lax.scan(hop, first, None, length=count)
        return sums / jnp.moveaxis(total, 1, 2)[..., None]

    @wrap
    def layer(x: Any, parts: Any) -> Any:
        w = {n: lax.all_gather(p, "d", tiled=True) for n, p in parts.items()}
        heads = (*x.shape[:2], 3, _HEADS, -1)
        q, k, v = jnp.moveaxis((jax.nn.standardize(x) @ w["qkv"]).reshape(heads), 2, 0)
        x = x + attention(q, k, v).reshape(x.shape) @ w["out"]
        return x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"]) @ w["down"]

    weights = _shapes(
        *(mesh, P(None, "d")),
        qkv=(layers, width, 3 * width),
        out=(layers, width, width),
        up=(layers, width, 4 * width),
        down=(layers, 4 * width, width),
    )
    divided = P(None, "d")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(divided, divided), out_specs=P())
    def loss(weights: Any, x: Any) -> Any:
        hidden, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return lax.pmean(jnp.mean((hidden - x) ** 2), "d")

    x = _shapes(mesh, divided, x=(batch, length, width))["x"]
    return _trained(loss, weights, x)


def pipeline(
    mesh: Any, wrap: Callable, layers: int, batch: int, length: int, width: int
) -> tuple[Callable, tuple]:
    """Stages of layers, one on each device: microbatches go from one to the next in a scan
    over ticks (GPipe). The loss is outside."""
    count = mesh.shape["d"]
    onward = [(i, (i + 1) % count) for i in range(count)]

    @wrap
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(jax.nn.standardize(x) @ w["up"]) @ w["down"]

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    def run(weights: Any, x: Any) -> Any:
        weights = jax.tree.map(lambda w: w[0], weights)
        number = lax.axis_index("d")

        def tick(given: Any, t: Any) -> tuple[Any, Any]:
            made = jnp.where(number == 0, x[jnp.clip(t, 0, batch - 1)], given)
            for k in range(layers):
                made = layer(made, jax.tree.map(lambda w, k=k: w[k], weights))
            return lax.ppermute(made, "d", onward), made

        first = lax.pcast(jnp.zeros_like(x[0]), "d", to="varying")
        _, made = lax.scan(tick, first, jnp.arange(batch + count - 1))
        return made[None, count - 1 :]

    def loss(weights: Any, x: Any) -> Any:
        return jnp.mean((run(weights, x)[-1] - x) ** 2)

    up, down = (count, layers, width, 4 * width), (count, layers, 4 * width, width)
    weights = _shapes(mesh, P("d"), up=up, down=down)
    return _trained(loss, weights, _shapes(mesh, P(), x=(batch, length, width))["x"])


def averaged_gradients(
    mesh: Any, wrap: Callable, layers: int, batch: int, length: int, width: int
) -> tuple[Callable, tuple]:
    """Layers that are no loop, on a part of the batch: gradients are taken and averaged in
    an unchecked `shard_map`; weights and moments are whole on every device."""

    @wrap
    def layer(x: Any, w: Any) -> Any:
        return x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"]) @ w["down"]

    def loss(weights: Any, x: Any) -> Any:
        hidden = x
        for w in weights:
            hidden = layer(hidden, w)
        return jnp.mean((hidden - jnp.roll(x, 1, 1)) ** 2)

    @jax.custom_vjp
    def averaged(weights: Any, x: Any) -> Any:
        return gradients(weights, x)[0]

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False
    )
    def gradients(weights: Any, x: Any) -> Any:
        return lax.pmean(jax.value_and_grad(loss)(weights, x), "d")

    averaged.defvjp(
        gradients, lambda grads, value: (jax.tree.map(value.__mul__, grads), None)
    )
    up, down = (width, 4 * width), (4 * width, width)
    weights = [_shapes(mesh, P(), up=up, down=down) for _ in range(layers)]
    return _trained(averaged, weights, _shapes(mesh, P("d"), x=(batch, length, width))["x"])


STEPS: dict[str, Callable[..., tuple[Callable, tuple]]] = {
    "ring attention": ring_attention,
    "pipeline": pipeline,
    "averaged gradients": averaged_gradients,
}
