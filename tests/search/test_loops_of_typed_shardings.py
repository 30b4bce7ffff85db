"""Loops over values whose shardings are part of their types: the axes of the mesh are
explicit, or manual as in a `shard_map` or a `pmap`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scanned_steps import normal

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, BATCH = 6, 32, 1024
NOTHING = jax.checkpoint_policies.nothing_saveable

needs_four_devices = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")


def mesh_of(sizes, axis_type=AxisType.Auto):
    names = ("data", "model")[: len(sizes)]
    return jax.make_mesh(sizes, names, axis_types=(axis_type,) * len(sizes))


def placed(mesh, value, *spec):
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))


def layers():
    return {
        "into": normal(LAYERS, WIDTH, 4 * WIDTH),
        "out": normal(LAYERS, 4 * WIDTH, WIDTH),
    }


def descent(body, mean, w, x):
    def loss(w):
        return mean(jnp.mean(lax.scan(lambda x, w: (body(x, w), None), x, w)[0] ** 2))

    value, grads = jax.value_and_grad(loss)(w)
    return w, grads, value


def explicit(sizes, wrap):
    """The axes are explicit: products say how their results are divided."""
    mesh = mesh_of(sizes, AxisType.Explicit)
    divided = NamedSharding(mesh, PartitionSpec("data", None))

    def body(x, w):
        hidden = jax.nn.gelu(x @ w["into"])
        return x + jnp.einsum("bh,hd->bd", hidden, w["out"], out_sharding=divided)

    def step(w, x):
        w, grads, value = descent(wrap(body), lambda loss: loss, w, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value

    w = layers()
    w = {
        "into": placed(mesh, w["into"], None, None, "model"),
        "out": placed(mesh, w["out"], None, "model"),
    }
    return step, (w, placed(mesh, normal(BATCH, WIDTH), "data"))


def mapped_step(body, check_vma, w, x, key):
    key = jax.random.fold_in(key, lax.axis_index("data"))

    def dropped(x, w):
        made = body(x, w)
        return jnp.where(jax.random.bernoulli(key, 0.9, made.shape), made, 0)

    mean = functools.partial(lax.pmean, axis_name="data")
    w, grads, value = descent(dropped, mean if check_vma else lambda loss: loss, w, x)
    if not check_vma:
        grads, value = jax.tree.map(mean, (grads, value))
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value


def mapped(check_vma, wrap):
    """A whole step of one device in a `shard_map`, with a collective in its loop."""
    mesh = mesh_of((2, 2))

    def body(x, w):
        hidden = jax.nn.gelu(x @ w["into"])
        return x + lax.psum(hidden @ w["out"], "model")

    spec = PartitionSpec
    specs = {"into": spec(None, None, "model"), "out": spec(None, "model")}
    step = jax.shard_map(
        functools.partial(mapped_step, wrap(body), check_vma),
        mesh=mesh,
        in_specs=(specs, spec("data"), spec()),
        out_specs=(specs, spec()),
        check_vma=check_vma,
    )
    w = {name: placed(mesh, w, *specs[name]) for name, w in layers().items()}
    x = placed(mesh, normal(BATCH, WIDTH), "data")
    return step, (w, x, placed(mesh, jax.random.key(1)))


STEPS = {
    "explicit axes": functools.partial(explicit, (2, 2)),
    "explicit axes of one device": functools.partial(explicit, (1, 1)),
    "a shard_map": functools.partial(mapped, True),
    "a shard_map without check_vma": functools.partial(mapped, False),
}


# One of each kind in CI.
BY_HAND = ("explicit axes of one device", "a shard_map without check_vma")


@needs_four_devices
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.hand if name in BY_HAND else [])
        for name in STEPS
    ],
)
@pytest.mark.slow
def test_budgets_down_to_the_smallest_are_kept_with_the_same_results(name):
    step, args = STEPS[name](lambda body: body)
    as_written = jax.jit(step).lower(*args).compile()
    needed = memory_figures(as_written).total_bytes
    expected = as_written(*args)
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1).plan(*args)
    for budget in (int(0.7 * needed), caught.value.smallest_bytes):
        planned = remat_train_step(step, budget=budget)
        plan = planned.plan(*args)
        assert plan.measured_bytes <= budget
        assert plan.loops
        for got, wanted in zip(
            jax.tree.leaves(planned(*args)), jax.tree.leaves(expected), strict=True
        ):
            assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@needs_four_devices
@pytest.mark.parametrize("name", STEPS)
def test_about_as_little_is_needed_as_where_the_body_keeps_nothing(name):
    step, args = STEPS[name](lambda body: body)
    by_hand, _ = STEPS[name](functools.partial(jax.checkpoint, policy=NOTHING))
    budget = memory_figures(jax.jit(by_hand).lower(*args).compile()).total_bytes
    plan = remat_train_step(step, budget=budget * 21 // 20).plan(*args)
    assert plan.measured_bytes <= budget * 21 // 20
    # The values of a mapped step are those of one device: taken for whole arrays, they
    # were predicted to save a quarter.
    assert 2 / 3 <= plan.predicted_bytes / plan.measured_bytes <= 3 / 2
