"""The fence: survives, costs nothing, copies nothing, moves nothing between devices."""

import re
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from steps import QUICK, assert_trees_equal, copied, mlp_arguments, mlp_step

import coop_jax
from coop_jax.emit.fence import fence


def dtypes():
    kinds = "float32 bfloat16 float16 int32 int8 uint32 bool complex64"
    return kinds.split()


@pytest.mark.parametrize("dtype", dtypes())
def test_identity_for_every_type(dtype):
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    [y] = jax.jit(lambda x: fence(x + x))(x)
    assert_trees_equal(y, x + x)


def test_identity_for_keys_scalars_and_empty_arrays():
    operands = jax.random.key(3), jnp.float32(2), jnp.zeros((0, 4))
    assert_trees_equal(jax.jit(fence)(*operands), [*operands])
    assert_trees_equal(fence(*operands), [*operands])


def test_keeps_a_recomputation_apart():
    def twice(x, with_fence):
        first = jnp.tanh(x @ x)
        [y] = fence(x) if with_fence else [x]
        return first + 2 * jnp.tanh(y @ y)

    def products(with_fence):
        step = jax.jit(lambda x: twice(x, with_fence), donate_argnums=0)
        text = step.lower(jnp.ones((64, 64))).compile().as_text()
        return text.count(" dot(") + text.count('dot_general"')

    assert products(True) == 2 * products(False)


def test_batches_and_differentiates_as_the_identity():
    x = jnp.arange(3.0)
    assert_trees_equal(jax.vmap(lambda x: fence(x)[0])(x), x)
    tangent = jax.jvp(lambda x: fence(x)[0] ** 2, (x,), (jnp.ones(3),))[1]
    assert_trees_equal(tangent, 2 * x)
    assert_trees_equal(jax.grad(lambda x: (fence(x)[0] ** 2).sum())(x), 2 * x)


def test_chain_over_donated_memory_is_free():
    def chain(x):
        for _ in range(5):
            [x] = fence(x + 1)
        return x

    compiled = jax.jit(chain, donate_argnums=0).lower(jnp.ones(1 << 20)).compile()
    assert compiled.as_text().count('custom_call_target="coop_fence"') == 5
    assert compiled.as_text().count(" copy(") == 0
    assert compiled.memory_analysis().temp_size_in_bytes == 0


def test_a_fence_takes_no_time_that_a_copy_would():
    """20 fences over 64 MiB against one addition over it, medians of one run."""

    def seconds(step, x):
        compiled = jax.jit(step, donate_argnums=0).lower(x).compile()
        times = []
        for _ in range(9):
            start = time.perf_counter()
            x = jax.block_until_ready(compiled(x))
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def fences(x):
        for _ in range(20):
            [x] = fence(x)
        return x

    x = jnp.ones(1 << 24)
    assert seconds(fences, x.copy()) < 0.1 * seconds(lambda x: x + 1, x)


def test_planned_step_adds_no_copies_of_donated_arguments():
    arguments = mlp_arguments()
    step = coop_jax.remat_train_step(
        mlp_step, budget="60%", planner=QUICK, donate_argnums=0
    )
    planned = step.lower(*arguments).compile().as_text()
    original = jax.jit(mlp_step, donate_argnums=0).lower(*arguments).compile().as_text()
    assert "coop_fence" in planned
    assert num_copies(planned) <= num_copies(original)


def num_copies(text):
    """Copies of arrays: a constant that passes a fence is copied, too."""
    return len(re.findall(r"\[\d[\d,]*\]\S* copy\(", text))


def test_cuda_and_tpu_lower_to_a_barrier():
    step = jax.jit(lambda x: fence(x + 1)[0])
    for platform in ("cuda", "tpu"):
        text = step.trace(jnp.ones(3)).lower(lowering_platforms=(platform,)).as_text()
        assert "optimization_barrier" in text
        assert "coop_fence" not in text


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()).reshape(4), ("data",))


def test_mesh_adds_no_gather(mesh):
    rows = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights, x = mlp_arguments(batch=2048)
    weights, x = jax.device_put(weights, everywhere), jax.device_put(x, rows)
    original = jax.jit(mlp_step, donate_argnums=0).lower(weights, x).compile()
    step = coop_jax.remat_train_step(
        mlp_step, budget="75%", planner=QUICK, donate_argnums=0
    )
    plan = step.plan(weights, x)
    assert not plan.is_unmodified
    assert plan.measured_bytes <= plan.budget_bytes
    planned = step.lower(weights, x).compile().as_text()
    assert "coop_fence" in planned
    assert "all-gather" not in original.as_text()
    assert "all-gather" not in planned
    expected = original(copied(weights), x)
    actual = step(copied(weights), x)
    assert actual[0][0].sharding.is_equivalent_to(expected[0][0].sharding, 2)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_mesh_passes_keys(mesh):
    everywhere = NamedSharding(mesh, PartitionSpec())
    operands = jax.device_put((jax.random.key(1), jnp.ones((8, 2))), everywhere)
    assert_trees_equal(jax.jit(fence)(*operands), [*operands])


def test_mesh_keeps_shardings_that_no_axis_names(mesh):
    """XLA divides two heads over four devices by two, and the rows of a head by two."""
    x = jax.device_put(jnp.ones((8, 6)), NamedSharding(mesh, PartitionSpec()))
    columns = NamedSharding(mesh, PartitionSpec(None, "data"))
    weights = jax.device_put(jnp.arange(6.0 * 32).reshape(6, 32), columns)

    def scores(x, weights, pass_on):
        [heads] = pass_on((x @ weights).reshape(8, 2, 16))
        [heads] = pass_on(jnp.tanh(heads))
        return (heads @ jnp.swapaxes(heads, 1, 2)).sum(0)

    def compiled(pass_on):
        step = jax.jit(lambda x, weights: scores(x, weights, pass_on))
        return step.lower(x, weights).compile()

    fenced, plain = compiled(lambda a: fence(a)), compiled(lambda a: [a])
    assert "coop_fence" in fenced.as_text()
    assert collectives(fenced) == collectives(plain)
    np.testing.assert_allclose(fenced(x, weights), plain(x, weights), rtol=1e-6)


def test_mesh_divides_alike_before_and_behind(mesh):
    """What is read behind a fence says how a value is divided, as it does without. Each
    fence says so for itself, also where several are alike."""
    devices = len(mesh.devices.flat)

    def placed(shape, *axes):
        x = jnp.ones(shape, jnp.float32)
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    rows, inside, outside = 64, 8 * devices, 16 * devices
    x, g = placed((rows, inside), None, "data"), placed((rows, outside))
    first = placed((inside, outside), None, "data")
    second = placed((inside, outside), "data", None)

    def step(x, g, first, second, pass_on):
        sums = []
        for weights, part in ((first, g), (second, jnp.sin(g))):
            [gradient] = pass_on(x.T @ part)
            sums.append(weights + gradient)
        return sums

    jitted = jax.jit(step, static_argnums=4)
    args = x, g, first, second
    plain = jitted.lower(*args, lambda *xs: xs).compile()
    fenced = jitted.lower(*args, fence).compile()
    assert collectives(fenced) == collectives(plain)
    assert_trees_equal(jitted(*args, fence), jitted(*args, lambda *xs: xs))
