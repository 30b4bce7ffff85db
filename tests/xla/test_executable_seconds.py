"""The work of executables: against XLA's own counts, against counts by enumeration, and
the same for every platform that compiles a step."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas
from steps import NEEDS_CUDA, NEEDS_TPU, QUICK

import coop_jax
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.order_after import after_p
from coop_jax.targets import mesh as named_mesh
from coop_jax.targets import named
from coop_jax.trace.costs import flops
from coop_jax.trace.kernels import kernel_flops
from coop_jax.trace.operations import (
    SORT_OPERATIONS,
    selection_operations,
    sort_operations,
)
from coop_jax.xla import absent_devices
from coop_jax.xla.buffer_assignment import published_module
from coop_jax.xla.executable_seconds import executable_work
from coop_jax.xla.loop_trips import loop_trips
from coop_jax.xla.product_flops import product_flops
from coop_jax.xla.touched_bytes import TouchedBytes

CPU = named("cpu")
PLATFORMS = [
    "cpu",
    pytest.param("h200", marks=NEEDS_CUDA),
    pytest.param("tpu v5e", marks=NEEDS_TPU),
]


def compiled(step, *args, target="cpu"):
    args = absent_devices.placed(args, absent_devices.named_device(target))
    return jax.jit(step).lower(*args).compile()


def shape(*dimensions, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dimensions, dtype)


def layers_step(weights, x):
    """A step with a loop of layers, its gradients included."""

    def loss(weights):
        y, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
        return jnp.sum(y)

    return jax.grad(loss)(weights)


LAYERS = 6, 64, 256  # Layers, rows, width.
LAYERS_FLOPS = 3 * 2 * 6 * 64 * 256 * 256  # Both operands of each product are derived.


@pytest.mark.parametrize(
    ("step", "args"),
    [
        (lambda a, b: a @ b, (shape(64, 96), shape(96, 128))),
        (
            lambda a, b: jnp.einsum("bij,bkj->bik", a, b),
            (shape(4, 8, 64), shape(4, 72, 64)),
        ),
        (
            lambda a, b: jnp.einsum("aibj,jbk->aik", a, b),
            (shape(3, 8, 5, 64), shape(64, 5, 80)),
        ),
    ],
    ids=["matrices", "batched", "two contracted"],
)
def test_products_are_those_that_xla_counts(step, args):
    executable = compiled(step, *args)
    work = executable_work(executable, CPU)
    assert work.product_flops == executable.cost_analysis()["flops"]


def met_by_enumeration(sizes, kernels, strides, padding, holes, dilations):
    """Products of a convolution with elements of its input, by looking at all."""
    count = 1
    for n, k, stride, (low, high), hole, dilation in zip(
        sizes, kernels, strides, padding, holes, dilations, strict=True
    ):
        full = hole * (n - 1) + 1
        results = (full + low + high - (dilation * (k - 1) + 1)) // stride + 1
        places = (r * stride + j * dilation - low for r in range(results) for j in range(k))
        count *= sum(0 <= at < full and at % hole == 0 for at in places)
    return count


@pytest.mark.parametrize("seed", range(8))
def test_convolutions_count_what_they_multiply(seed):
    rng = np.random.default_rng(seed)
    sizes, kernels = rng.integers(6, 14, 2), rng.integers(1, 6, 2)
    strides, holes, dilations = rng.integers(1, 4, (3, 2))
    padding = rng.integers(0, 3, (2, 2))
    options = [x.tolist() for x in (strides, padding, holes, dilations)]

    def step(x, kernel):
        return lax.conv_general_dilated(
            x,
            kernel,
            options[0],
            options[1],
            lhs_dilation=options[2],
            rhs_dilation=options[3],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    args = shape(2, *sizes.tolist(), 3), shape(*kernels.tolist(), 3, 8)
    met = met_by_enumeration(sizes, kernels, strides, padding, holes, dilations)
    lowered = published_module(compiled(step, *args))
    flops = sum(product_flops(lowered, i) for i in lowered.instructions.values())
    assert flops == 2 * 2 * 3 * 8 * met


@pytest.mark.parametrize("target", PLATFORMS)
def test_loops_count_as_often_as_they_iterate(target):
    layers, rows, width = LAYERS
    args = shape(layers, width, width), shape(rows, width)
    work = executable_work(compiled(layers_step, *args, target=target), named(target))
    assert work.product_flops == LAYERS_FLOPS


@pytest.mark.parametrize("target", PLATFORMS)
@pytest.mark.parametrize(("first", "limit", "by"), [(0, 12, 1), (0, 12, 3), (5, 12, 2)])
def test_loops_count_by_what_they_add(target, first, limit, by):
    """Also without the platform's note, which XLA:TPU does not take."""
    width = 256

    def repeated(x, w):
        state = jax.lax.while_loop(
            lambda state: state[0] < limit,
            lambda state: (state[0] + by, jnp.tanh(state[1] @ w)),
            (first, x),
        )
        return state[1]

    module = published_module(
        compiled(repeated, shape(64, width), shape(width, width), target=target)
    )
    [loop] = [i for i in module.instructions.values() if i.opcode == "while"]
    times = len(range(first, limit, by))
    assert loop_trips(module, loop) == times
    unnoted = loop_trips(module, dataclasses.replace(loop, backend_config=b""))
    assert unnoted in (times, None)
    if target == "tpu v5e":
        assert unnoted == times


def kernel_of_programs(count):
    """A kernel of `count` programs that multiply blocks; its name is in XLA's module."""
    size = 128

    def kernel(x_ref, w_ref, out_ref):
        out_ref[...] = x_ref[...] @ w_ref[...]

    def call(x, w):
        return pallas.pallas_call(
            kernel,
            grid=(count,),
            in_specs=[
                pallas.BlockSpec((size, size), lambda i: (i, 0)),
                pallas.BlockSpec((size, size), lambda i: (0, 0)),
            ],
            out_specs=pallas.BlockSpec((size, size), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((count * size, size), x.dtype),
            name="blocks_of_a_product",
        )(x, w)

    return call, (shape(count * size, size), shape(size, size)), 2 * count * size**3


def test_kernels_count_once_for_every_program():
    counts = []
    for count in (1, 6):
        call, args, operations = kernel_of_programs(count)
        program = TracedStep.trace(call, {}, args, {}).program
        [(name, counted)] = kernel_flops(program).items()
        assert name == "blocks_of_a_product"
        assert operations <= counted < 1.02 * operations  # It copies its blocks, too.
        counts.append(counted)
    assert counts[1] == 6 * counts[0]


def test_the_body_of_a_shard_map_counts_once_for_every_part():
    mesh = named_mesh("cpu x4", {"x": 4})
    spec = jax.sharding.PartitionSpec("x")
    product = jax.shard_map(
        lambda a, b: a @ b,
        mesh=mesh,
        in_specs=(spec, jax.sharding.PartitionSpec()),
        out_specs=spec,
        check_vma=False,
    )
    jaxpr = jax.make_jaxpr(product)(shape(64, 32), shape(32, 16))
    assert sum(map(flops, jaxpr.eqns)) == 2 * 64 * 32 * 16


@NEEDS_TPU
def test_kernels_have_a_price_in_the_executable():
    call, args, operations = kernel_of_programs(6)
    executable = compiled(call, *args, target="tpu v5e")
    target = named("tpu v5e")
    unknown = executable_work(executable, target)
    known = executable_work(executable, target, {"blocks_of_a_product": operations})
    assert unknown.product_flops == 0
    assert known.product_flops == operations
    assert known.seconds >= operations / target.matrix_rate(4)


@pytest.mark.parametrize("target", PLATFORMS)
def test_convolutions_and_their_gradients_are_found_on_every_platform(target):
    def loss(kernel, x):
        y = lax.conv(x, kernel, (1, 1), "VALID")
        return jnp.sum(y * y)

    args = shape(64, 32, 3, 3), shape(16, 32, 18, 18)
    step = jax.grad(loss, argnums=(0, 1))
    work = executable_work(compiled(step, *args, target=target), named(target))
    forward = 2 * 16 * 64 * 32 * 9 * 16 * 16
    # The gradient of the input has as many products, those with padding aside.
    assert work.product_flops == 3 * forward


def test_a_loop_reads_the_layer_and_not_the_stack():
    layers, rows, width = LAYERS
    module = published_module(
        compiled(layers_step, shape(layers, width, width), shape(rows, width))
    )
    touched = TouchedBytes(module)
    bodies = {
        c for i in module.instructions.values() if i.opcode == "while" for c in i.called
    }
    in_bodies = [i for i in module.instructions.values() if i.computation in bodies]
    assert any(i.opcode in ("fusion", "dynamic-slice", "call") for i in in_bodies)
    stack = 4 * layers * width * width
    assert max(map(touched.of, in_bodies)) < stack


def test_elementwise_work_reads_its_operands_and_writes_its_result():
    work = executable_work(
        compiled(lambda a, b: jnp.tanh(a) * b, *2 * [shape(512, 512)]), CPU
    )
    assert (work.touched_bytes, work.launches, work.product_flops) == (3 * 2**20, 1, 0)


@pytest.mark.parametrize("length", [2, 8, 256])
def test_a_sort_takes_the_exchanges_of_a_bitonic_network(length):
    exchanges = 0
    for merged in itertools.takewhile(lambda n: n <= length, (2**k for k in range(1, 20))):
        distance = merged // 2
        while distance:
            exchanges += sum(1 for i in range(length) if not i & distance)
            distance //= 2
    assert sort_operations(length, length) == SORT_OPERATIONS * 2 * exchanges
    assert sort_operations(3 * length, length) == 3 * sort_operations(length, length)


@pytest.mark.parametrize("target", PLATFORMS)
def test_sorts_take_as_long_as_their_rows_are_long(target):
    rates = named(target)
    for rows, length in ((4096, 64), (64, 4096)):
        args = shape(rows, length)
        step = compiled(lambda x: jnp.argsort(x, axis=-1), args, target=target)
        seconds = executable_work(step, rates).seconds
        expected = sort_operations(rows * length, length) / rates.vector_rate
        assert expected <= seconds < 2 * expected + 1e-4
    few = compiled(lambda x: lax.top_k(x, 4)[0], shape(64, 4096), target=target)
    seconds = executable_work(few, rates).seconds
    assert seconds >= selection_operations(64 * 4096, 4096) / rates.vector_rate


def test_sorts_and_selections_of_a_jaxpr_count_their_exchanges():
    expected = sort_operations(64 * 1000, 1000)
    for step in (jnp.sort, lambda x: lax.top_k(x, 4)[0]):
        traced = jax.make_jaxpr(step)(jnp.ones((64, 1000)))
        assert sum(map(flops, traced.eqns)) >= expected
    along = jax.make_jaxpr(lambda x: lax.sort(x, dimension=0))(jnp.ones((64, 1000)))
    assert sum(map(flops, along.eqns)) == sort_operations(64 * 1000, 64)


def test_a_fence_touches_nothing():
    args = jnp.zeros((6, 256, 256)), jnp.zeros((4096, 256))
    step = jax.grad(lambda w, x: jnp.sum(unrolled(w, x)))
    fitted = coop_jax.remat_train_step(step, budget="70%", planner=QUICK)
    plan = fitted.plan(*args)
    assert plan.num_fences
    module = published_module(fitted.lower(*args).compile())
    fences = [i for i in module.instructions.values() if "fence" in i.target]
    assert fences
    assert not any(map(TouchedBytes(module).of, fences))


def test_an_order_of_updates_touches_nothing():
    """A call without a kernel; what it waits for is not read."""

    def ordered(x, y):
        return after_p.bind(x, y) + 1.0

    module = published_module(compiled(ordered, shape(1024, 1024), shape(1024, 1024)))
    orders = [i for i in module.instructions.values() if i.target == "coop_after"]
    assert orders
    assert not any(map(TouchedBytes(module).of, orders))


def unrolled(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return x


def test_recomputation_costs_what_it_computes():
    """Under a policy that recomputes the products, they are counted once more."""
    args = shape(6, 256, 256), shape(64, 256)

    def step(policy):
        body = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None), policy=policy)
        return jax.grad(lambda w, x: jnp.sum(lax.scan(body, x, w)[0]))

    policies = jax.checkpoint_policies
    saved, recomputed = (
        executable_work(compiled(step(policy), *args), CPU)
        for policy in (policies.dots_saveable, policies.nothing_saveable)
    )
    assert saved.product_flops == LAYERS_FLOPS
    assert recomputed.product_flops == LAYERS_FLOPS * 4 // 3


@pytest.mark.parametrize("times", [1, 7])
def test_work_adds_up(times):
    work = executable_work(compiled(lambda a: a @ a, shape(64, 64)), CPU)
    many = sum(itertools.repeat(work, times), type(work)())
    assert many.product_flops == work.times(times).product_flops
    assert many.seconds == pytest.approx(work.times(times).seconds)
