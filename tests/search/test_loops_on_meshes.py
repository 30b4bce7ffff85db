"""Loops of steps over several devices, whose axes are left to XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scanned_steps import normal

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, BATCH, STEPS = 6, 32, 512, 3


def block(x, w):
    scaled = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * w["scale"]
    return x + jnp.tanh(scaled @ w["into"]) @ w["out"]


def sgd(loss):
    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value

    return step


@sgd
def scanned(w, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (block(x, w), None), x, w)[0] ** 2)


@sgd
def unrolled(w, x):
    for i in range(LAYERS):
        x = block(x, jax.tree.map(lambda a, i=i: a[i], w))
    return jnp.mean(x**2)


def trained(w, batches):
    return jax.lax.scan(unrolled, w, batches)


def trained_scanned(w, batches):
    return jax.lax.scan(scanned, w, batches)


def arguments(step, axes, is_tensor_parallel):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(axes), ("data", "model"))
    split = "model" if is_tensor_parallel else None

    def placed(value, *spec):
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))

    weights = {
        "scale": placed(1 + normal(LAYERS, WIDTH)),
        "into": placed(normal(LAYERS, WIDTH, 4 * WIDTH), None, None, split),
        "out": placed(normal(LAYERS, 4 * WIDTH, WIDTH), None, split),
    }
    if step is scanned:
        return weights, placed(normal(BATCH, WIDTH), "data")
    return weights, placed(normal(STEPS, BATCH, WIDTH), None, "data")


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
@pytest.mark.parametrize(
    ("step", "axes"),
    [
        pytest.param(
            step,
            axes,
            marks=[
                *(() if step is scanned else [pytest.mark.slow]),
                *([pytest.mark.hand] if step is trained and axes == (2, 2) else ()),
            ],
        )
        for step in (scanned, trained, trained_scanned)
        for axes in ((4, 1), (2, 2), (1, 4))
        if step is scanned or axes != (1, 4)
    ],
)
def test_loops_are_planned_per_device(step, axes):
    args = arguments(step, axes, is_tensor_parallel=axes[1] > 1)
    as_written = jax.jit(step).lower(*args).compile()
    needed = memory_figures(as_written).total_bytes
    planned = remat_train_step(step, budget="90%")
    plan = planned.plan(*args)
    assert plan.measured_bytes <= 0.9 * needed
    assert plan.loops
    expected = as_written(*args)
    for got, wanted in zip(
        jax.tree.leaves(planned(*args)), jax.tree.leaves(expected), strict=True
    ):
        assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def attended(x, w):
    heads = 2
    parts = jnp.split(x @ w["into"], 4, -1)[:3]
    q, k, v = (a.reshape(*a.shape[:2], heads, -1).swapaxes(1, 2) for a in parts)
    shares = jax.nn.softmax(q @ k.swapaxes(2, 3), -1)
    mixed = (shares @ v).swapaxes(1, 2).reshape(x.shape)
    return x + jnp.pad(mixed, ((0, 0), (0, 0), (0, 3 * WIDTH))) @ w["out"]


@sgd
def attention_in_a_scan(w, x):
    x = x.reshape(16, -1, WIDTH)
    return jnp.mean(jax.lax.scan(lambda x, w: (attended(x, w), None), x, w)[0] ** 2)


@pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
@pytest.mark.slow
def test_fewer_heads_than_devices_are_no_error_in_a_scan():
    """XLA divides two heads over four devices in a way that no axis of the mesh names."""
    step = attention_in_a_scan
    args = arguments(scanned, (1, 4), is_tensor_parallel=True)
    expected = jax.jit(step)(*args)
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1).plan(*args)
    smallest = caught.value.smallest_bytes
    assert smallest <= memory_figures(jax.jit(step).lower(*args).compile()).total_bytes
    got = remat_train_step(step, budget=smallest)(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
