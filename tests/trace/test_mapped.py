"""Steps that are one `shard_map` or `pmap` are planned inside, on shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps import QUICK

import coop_jax
from coop_jax.compile.traced_step import TracedStep
from coop_jax.xla.memory_figures import memory_figures

COUNT, LAYERS, WIDTH, BATCH = 4, 4, 32, 2048
pytestmark = pytest.mark.skipif(len(jax.devices()) < COUNT, reason="needs four devices")
SCALE = np.linspace(0.5, 1, WIDTH, dtype=np.float32)


def loss(weights, x):
    for w in weights:
        x = x + jnp.tanh(jnp.tanh(x @ w) * SCALE)
    return (x * x).mean()


def updated(weights, grads):
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


def local(weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return updated(weights, jax.lax.pmean(grads, "a")), jax.lax.pmean(value, "a")


def on_one_device(weights, x):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return updated(weights, grads), value


def values():
    generator = np.random.default_rng(0)
    weights = generator.normal(size=(LAYERS, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    return list(weights.astype("f4")), generator.normal(size=(BATCH, WIDTH)).astype("f4")


def mesh():
    return Mesh(np.array(jax.devices()[:COUNT]), ("a",))


def mapped(*, check_vma):
    weights, x = values()
    whole, divided = PartitionSpec(), PartitionSpec("a")
    specs = (whole, divided), (whole, whole)

    def checked(weights, x):  # The weights of a device, whose gradients are summed here.
        varying = jax.lax.pcast(weights, "a", to="varying")
        return local_of(weights, varying, x)

    def local_of(weights, varying, x):
        value, grads = jax.value_and_grad(loss)(varying, x)
        return updated(weights, jax.lax.pmean(grads, "a")), jax.lax.pmean(value, "a")

    step = jax.shard_map(
        checked if check_vma else local,
        mesh=mesh(),
        in_specs=specs[0],
        out_specs=specs[1],
        check_vma=check_vma,
    )
    placed = [NamedSharding(mesh(), spec) for spec in specs[0]]
    return step, (jax.device_put(weights, placed[0]), jax.device_put(x, placed[1]))


def pmapped():
    weights, x = values()
    step = jax.pmap(local, axis_name="a", devices=jax.devices()[:COUNT])
    args = [np.stack([w] * COUNT) for w in weights], x.reshape(COUNT, -1, WIDTH)
    return step, jax.device_put(args, NamedSharding(mesh(), PartitionSpec("a")))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: mapped(check_vma=False), id="shard_map", marks=pytest.mark.slow
        ),
        pytest.param(
            lambda: mapped(check_vma=True), id="shard_map checked", marks=pytest.mark.slow
        ),
        pytest.param(pmapped, id="pmap"),
    ],
)
def test_the_body_is_planned_and_sends_no_more(make):
    step, args = make()
    as_written = jax.jit(step, donate_argnums=0).lower(*args).compile()
    planned = coop_jax.remat_train_step(step, budget="70%", planner=QUICK, donate_argnums=0)
    compiled = planned.lower(*args).compile()
    needed = memory_figures(as_written).total_bytes
    assert memory_figures(compiled).total_bytes <= 0.7 * needed
    assert planned.plan(*args).num_devices == COUNT
    assert collectives(compiled) <= collectives(as_written)
    of_one = jax.jit(on_one_device)
    weights, x = values()
    state, batch = args
    for _ in range(20):
        weights, wanted = of_one(weights, x)
        state, got = planned(state, batch)
        np.testing.assert_allclose(got, np.broadcast_to(wanted, got.shape), rtol=1e-5)
    for ours, theirs in zip(state, weights, strict=True):
        assert ours.sharding.device_set == set(jax.devices()[:COUNT])
        np.testing.assert_allclose(
            ours, np.broadcast_to(theirs, ours.shape), rtol=1e-4, atol=1e-5
        )


def test_its_values_are_those_of_one_device():
    step, args = mapped(check_vma=False)
    traced = TracedStep.trace(step, {}, args, {})
    assert traced.program.mapped is not None
    assert traced.program.invars[-1].aval.shape == (BATCH // COUNT, WIDTH)
    assert (traced.num_devices(), traced.num_shards()) == (COUNT, 1)


def test_with_equations_around_it_is_not_the_program():
    step, args = mapped(check_vma=False)
    around = lambda weights, x: step(weights, jnp.sin(x))  # noqa: E731
    traced = TracedStep.trace(around, {}, args, {})
    assert traced.program.mapped is None
    assert "shard_map" not in [eqn.primitive.name for eqn in traced.program.eqns]
    assert traced.num_shards() == COUNT
