"""Training steps with `shard_map`s and equations around them, on four devices or on one.

Each is a function of `wrap`, which the layers are put through: `jax.checkpoint` with a
policy, or nothing; and of the number of devices. It returns the step and its arguments;
the step replaces the first one.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec
from scanned_steps import normal

COUNT, LAYERS, WIDTH, BATCH = 4, 5, 32, 1024
WHOLE, DIVIDED = PartitionSpec(), PartitionSpec("d")


def mesh_of(*sizes):
    names = ("d", "t")[: len(sizes)]
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    devices = jax.devices()[: math.prod(sizes)]
    return jax.make_mesh(sizes, names, axis_types=types, devices=devices)


def placed(mesh, tree, spec):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), tree)


def stacked_layers():
    return {
        "into": normal(LAYERS, WIDTH, 4 * WIDTH),
        "out": normal(LAYERS, 4 * WIDTH, WIDTH),
    }


def list_of_layers():
    return [
        {"into": normal(WIDTH, 4 * WIDTH, seed=k), "out": normal(4 * WIDTH, WIDTH, seed=k)}
        for k in range(LAYERS)
    ]


def block(x, w):
    return x + jnp.tanh(jax.nn.standardize(x) @ w["into"]) @ w["out"]


def descent(loss):
    """Momentum, outside of all maps."""

    def step(state, x):
        weights, momentum = state
        value, grads = jax.value_and_grad(loss)(weights, x)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return (weights, momentum), value

    return step


def state_of(mesh, weights, spec):
    return placed(mesh, (weights, jax.tree.map(jnp.zeros_like, weights)), spec)


def loss_inside(wrap, count=COUNT):
    """The loss of a batch, divided by hand; layers are not a loop."""
    mesh = mesh_of(count)
    layer = wrap(block)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(WHOLE, DIVIDED), out_specs=WHOLE)
    def loss(weights, x):
        hidden = x
        for w in weights:
            hidden = layer(hidden, w)
        return lax.pmean(jnp.mean((hidden - x) ** 2), "d")

    state = state_of(mesh, list_of_layers(), WHOLE)
    return descent(loss), (state, placed(mesh, normal(BATCH, WIDTH), DIVIDED))


def gradients_inside(wrap, count=COUNT):
    """Gradients along one axis of the mesh by hand, unchecked; the other is XLA's."""
    mesh = mesh_of(max(1, count // 2), min(2, count))
    layer = wrap(block)

    def loss(weights, x):
        hidden = x
        for w in weights:
            hidden = layer(hidden, w)
        return jnp.mean((hidden - x) ** 2)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(WHOLE, DIVIDED),
        out_specs=(WHOLE, WHOLE),
        axis_names={"d"},
        check_vma=False,
    )
    def gradients(weights, x):
        return lax.pmean(jax.value_and_grad(loss)(weights, x), "d")

    def step(weights, x):
        value, grads = gradients(weights, jnp.sin(x))
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    weights = [
        {
            "into": placed(mesh, w["into"], PartitionSpec(None, "t")),
            "out": placed(mesh, w["out"], PartitionSpec("t")),
        }
        for w in list_of_layers()
    ]
    return step, (weights, placed(mesh, normal(BATCH, WIDTH), DIVIDED))


def ring(wrap, count=COUNT):
    """A scan over layers, whose weights are gathered and whose rows travel in a ring."""
    mesh = mesh_of(count)

    @wrap
    def layer(x, w):
        w = jax.tree.map(lambda part: lax.all_gather(part, "d", tiled=True), w)

        def hop(carry, _):
            rows, total = carry
            total = total + jnp.tanh(rows @ w["into"]) @ w["out"]
            around = [(i, (i + 1) % count) for i in range(count)]
            return (lax.ppermute(rows, "d", around), total), None

        (_, total), _ = lax.scan(hop, (x, x), None, length=count)
        return block(total / count, w)

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(None, "d"), DIVIDED),
        out_specs=WHOLE,
    )
    def loss(weights, x):
        hidden, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return lax.pmean(jnp.mean((hidden - x) ** 2), "d")

    state = state_of(mesh, stacked_layers(), PartitionSpec(None, "d"))
    return descent(loss), (state, placed(mesh, normal(BATCH, WIDTH), DIVIDED))


def pipeline(wrap, count=COUNT):
    """Stages on devices of their own: what one makes of a microbatch goes to the next."""
    mesh, num_batches = mesh_of(count), 8

    @wrap
    def stage(x, weights):
        for k in range(2):
            x = block(x, jax.tree.map(lambda w, k=k: w[k], weights))
        return x

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(DIVIDED, WHOLE), out_specs=DIVIDED
    )
    def run(weights, batches):
        weights = jax.tree.map(lambda w: w[0], weights)
        number = lax.axis_index("d")

        def tick(x, t):
            given = batches[jnp.clip(t, 0, num_batches - 1)]
            made = stage(jnp.where(number == 0, given, x), weights)
            onward = [(i, (i + 1) % count) for i in range(count)]
            return lax.ppermute(made, "d", onward), made

        first = lax.pcast(jnp.zeros_like(batches[0]), "d", to="varying")
        _, made = lax.scan(tick, first, jnp.arange(num_batches + count - 1))
        return made[count - 1 :][None]

    def loss(weights, batches):
        return jnp.mean((run(weights, batches)[-1] - batches) ** 2)

    stages = {
        "into": 0.2 * normal(count, 2, WIDTH, 4 * WIDTH),
        "out": 0.2 * normal(count, 2, 4 * WIDTH, WIDTH),
    }
    batches = placed(mesh, normal(num_batches, BATCH // 8, WIDTH), WHOLE)
    return descent(loss), (state_of(mesh, stages, DIVIDED), batches)


def a_map_for_each_layer(wrap, count=COUNT):
    """Layers that are a map each, with random bits, and equations of XLA's between them."""
    mesh = mesh_of(count)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(DIVIDED, WHOLE, WHOLE), out_specs=DIVIDED
    )
    def layer(x, w, key):
        key = jax.random.fold_in(key, lax.axis_index("d"))
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), block(x, w), 0.0)

    layer = wrap(layer)

    def loss(weights, x):
        hidden = x
        for k, w in enumerate(weights):
            hidden = jnp.sin(layer(hidden, w, jax.random.key(k)))
        return jnp.mean((hidden - x) ** 2)

    state = state_of(mesh, list_of_layers(), WHOLE)
    return descent(loss), (state, placed(mesh, normal(BATCH, WIDTH), DIVIDED))


def a_map_in_a_loop(wrap, count=COUNT):
    """A scan over layers; in each rows change places between devices, in a map."""
    mesh = mesh_of(count)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(DIVIDED, DIVIDED), out_specs=DIVIDED
    )
    def experts(x, w):
        w = jax.tree.map(lambda part: part[0], w)
        rows = lax.all_to_all(x.reshape(count, -1, WIDTH), "d", 0, 0)
        made = block(rows.reshape(-1, WIDTH), w)
        return lax.all_to_all(made.reshape(count, -1, WIDTH), "d", 0, 0).reshape(x.shape)

    @wrap
    def layer(x, w):
        return experts(jnp.tanh(x @ w["first"]), w["experts"])

    def loss(weights, x):
        hidden, _ = lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean((hidden - x) ** 2)

    mixed = PartitionSpec(None, "d")
    weights = {
        "first": placed(mesh, normal(LAYERS, WIDTH, WIDTH), WHOLE),
        "experts": {
            "into": placed(mesh, normal(LAYERS, count, WIDTH, 4 * WIDTH), mixed),
            "out": placed(mesh, normal(LAYERS, count, 4 * WIDTH, WIDTH), mixed),
        },
    }
    momentum = jax.tree.map(jnp.zeros_like, weights)
    x = placed(mesh, normal(BATCH, WIDTH), DIVIDED)
    return descent(loss), ((weights, momentum), x)


def maps_in_branches(wrap, count=COUNT):
    """A step that is left out where the gradients are not finite, with a map in a loop over
    microbatches of one branch."""
    mesh = mesh_of(count)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(WHOLE, DIVIDED), out_specs=WHOLE)
    def loss(weights, x):
        hidden = x
        for w in weights:
            hidden = wrap(block)(hidden, w)
        return lax.pmean(jnp.mean((hidden - x) ** 2), "d")

    def step(state, batches):
        def trained(state):
            def one(state, x):
                return descent(loss)(state, x)

            return lax.scan(one, state, batches)

        def left_out(state):
            return state, jnp.zeros(len(batches))

        state, losses = lax.cond(jnp.isfinite(batches).all(), trained, left_out, state)
        return state, losses.mean()

    batches = placed(mesh, normal(3, BATCH, WIDTH), PartitionSpec(None, "d"))
    return step, (state_of(mesh, list_of_layers(), WHOLE), batches)


LOOPS = (a_map_in_a_loop, maps_in_branches)
STEPS = (loss_inside, gradients_inside, ring, pipeline, a_map_for_each_layer)
