"""What devices send each other in a `shard_map` is sent again where a policy would."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from scanned_steps import normal

from coop_jax import remat_train_step
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, INNER, BATCH = 4, 64, 256, 2048
# `jax.checkpoint` works on XLA:CPU where this pass is off.
OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
WEIGHTS = [{"up": Spec(None, "b"), "down": Spec("b")}] * LAYERS
pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")


def mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))


def summed(w, x):
    """Tensor parallelism: the activations are on all devices of the axis."""
    return x + lax.psum(jax.nn.gelu(x @ w["up"]) @ w["down"], "b")


def gathered(w, x):
    """Sequence parallelism: each device has a part of them between the products."""
    hidden = jax.nn.gelu(lax.all_gather(jnp.tanh(x), "b", tiled=True) @ w["up"])
    return x + lax.psum_scatter(hidden @ w["down"], "b", tiled=True)


def descent(layer, mean, weights, x):
    def loss(weights):
        y = x
        for w in weights:
            y = layer(w, y)
        return mean((y * y).mean())

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def whole(layer, batch, *, check_vma, wrap):
    """A step that is one `shard_map`."""
    layer = wrap(layer)

    def step(weights, x):
        if check_vma:
            axes = tuple(axis for axis in batch if axis)
            return descent(layer, lambda value: lax.pmean(value, axes), weights, x)
        weights, value = descent(layer, lambda value: value, weights, x)
        return lax.pmean(weights, "a"), lax.pmean(value, ("a", "b"))

    return jax.shard_map(
        step,
        mesh=mesh(),
        in_specs=(WEIGHTS, Spec(batch)),
        out_specs=(WEIGHTS, Spec()),
        check_vma=check_vma,
    )


def parts(layer, batch, *, wrap):
    """A step with a `shard_map` in each layer."""
    specs = {"in_specs": (WEIGHTS[0], Spec(batch)), "out_specs": Spec(batch)}
    layer = jax.shard_map(layer, mesh=mesh(), **specs)
    return functools.partial(descent, wrap(layer), lambda value: value)


ROWS, ALL = ("a",), ("a", "b")
STEPS = {
    "whole": functools.partial(whole, summed, ROWS, check_vma=True),
    "whole without check_vma": functools.partial(whole, summed, ROWS, check_vma=False),
    "whole and gathered": functools.partial(whole, gathered, ALL, check_vma=True),
    "in each layer": functools.partial(parts, summed, ROWS),
    "gathered in each layer": functools.partial(parts, gathered, ALL),
}
MARKS = {
    "whole": [pytest.mark.slow],
    "whole without check_vma": [pytest.mark.slow],
    "whole and gathered": [pytest.mark.slow, pytest.mark.hand],
}


def arguments(batch):
    def placed(value, spec):
        return jax.device_put(value, NamedSharding(mesh(), spec))

    weights = [
        {
            "up": placed(normal(WIDTH, INNER, seed=i), Spec(None, "b")),
            "down": placed(normal(INNER, WIDTH, seed=i), Spec("b")),
        }
        for i in range(LAYERS)
    ]
    return weights, placed(normal(BATCH, WIDTH), Spec(batch))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in STEPS],
)
def test_it_needs_hardly_more_than_under_a_policy_with_the_same_results(name):
    make = STEPS[name]
    args = arguments(make.args[1])
    policy = jax.jit(make(wrap=jax.checkpoint)).lower(*args).compile(OPTIONS)
    step = make(wrap=lambda layer: layer)
    needed = memory_figures(jax.jit(step).lower(*args).compile()).total_bytes
    budget = int(1.1 * memory_figures(policy).total_bytes)
    # A `shard_map` in a step is one operation, which makes all that it keeps at once.
    budget = budget if name.startswith("whole") else int(0.75 * needed)
    assert budget < 0.8 * needed
    planned = remat_train_step(step, budget=budget)
    compiled = planned.lower(*args).compile()
    assert memory_figures(compiled).total_bytes <= budget
    assert sum(collectives(compiled).values()) >= LAYERS
    assert planned.check(*args).largest_relative < 1e-5
