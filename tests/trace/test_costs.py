"""Prices of operations that matrix units are of no use for."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest
from steps import traced

import coop_jax
from coop_jax import targets
from coop_jax.trace.costs import flops, patch_elements, seconds, seconds_again
from coop_jax.trace.factorizations import factorization_of
from coop_jax.trace.operations import RANDOM_BITS_OPERATIONS, sort_operations
from coop_jax.xla.executable_seconds import executable_work

ROWS, WIDTH = 64, 512


def only_equation(name, function, *args):
    program = traced(function, *args).program
    (eqn,) = (eqn for eqn in program.eqns if eqn.primitive.name == name)
    return eqn


@pytest.mark.parametrize("target", targets.names())
def test_random_bits_and_sorts_take_the_rate_of_vectors(target):
    target = targets.named(target)
    key, x = jax.random.key(0), jnp.ones((ROWS, WIDTH))
    bits = only_equation("random_bits", lambda k: jax.random.bits(k, x.shape), key)
    operations = RANDOM_BITS_OPERATIONS * x.size
    assert seconds([bits], 0, 0, target) == operations / target.vector_rate
    assert seconds_again(bits, target) >= operations / target.vector_rate
    ordered = only_equation("sort", jnp.sort, x)
    operations = sort_operations(x.size, WIDTH)
    assert seconds([ordered], 0, 0, target) == operations / target.vector_rate


def convolved(groups, x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        *(x, kernel, (1, 1), "SAME"),
        dimension_numbers=numbers,
        feature_group_count=groups,
    )


def volumes(x, kernel):
    numbers = ("NDHWC", "DHWIO", "NDHWC")
    return jax.lax.conv_general_dilated(
        *(x, kernel, (1, 1, 1), "SAME"), dimension_numbers=numbers
    )


OF_PATCHES = {
    "2 groups": (functools.partial(convolved, 2), (2, 16, 16, 32), (3, 5, 16, 64)),
    "32 groups": (functools.partial(convolved, 32), (2, 16, 16, 32), (3, 5, 1, 64)),
    "volumes": (volumes, (2, 8, 8, 8, 16), (3, 3, 3, 16, 16)),
}


@pytest.mark.parametrize("name", OF_PATCHES)
def test_on_a_processor_unusual_convolutions_take_the_time_of_their_patches(name):
    """In a plan as in the price of an executable; elsewhere the rate of matrices."""
    function, *shapes = OF_PATCHES[name]
    x, kernel = map(jnp.ones, shapes)
    conv = only_equation("conv_general_dilated", function, x, kernel)
    patches = x.size * math.prod(kernel.shape[:-2])
    products = 2 * patches // x.shape[-1] * kernel.shape[-2] * kernel.shape[-1]
    assert patch_elements(conv) == patches
    for target in map(targets.named, targets.names()):
        dense = products / target.matrix_rate(4)
        expected = max(dense, patches * target.patch_seconds)
        assert seconds([conv], 0, 0, target) == expected
        assert (expected > dense) == (target.name == "cpu")
    processor = targets.named("cpu")
    compiled = jax.jit(function).lower(x, kernel).compile()
    work = executable_work(compiled, processor)
    in_executable = work.seconds - processor.launch_seconds * work.launches
    assert in_executable == pytest.approx(patches * processor.patch_seconds)


def test_the_usual_convolutions_take_the_rate_of_matrices():
    function = functools.partial(convolved, 1)
    x, kernel = jnp.ones((2, 16, 16, 32)), jnp.ones((3, 5, 32, 64))
    conv = only_equation("conv_general_dilated", function, x, kernel)
    assert patch_elements(conv) == 0


def pooled(x):
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")


def test_poolings_count_every_position_of_their_window():
    x = jnp.ones((2, 32, 32, 16))
    pooling = only_equation("reduce_window_max", pooled, x)
    taps = x.size // 4 * 9
    for target in map(targets.named, targets.names()):
        expected = max(taps / target.vector_rate, taps * target.window_tap_seconds)
        assert seconds([pooling], 0, 0, target) == expected
    processor = targets.named("cpu")
    work = executable_work(jax.jit(pooled).lower(x).compile(), processor)
    assert work.seconds == pytest.approx(taps * processor.window_tap_seconds, rel=0.05)


LINEAR_ALGEBRA = {
    "cholesky": (jnp.linalg.cholesky, 1 / 3),
    "lu": (lambda x: jax.lax.linalg.lu(x)[0], 2 / 3),
    "qr": (lambda x: jnp.linalg.qr(x)[0], 8 / 3),
    "eigh": (lambda x: jnp.linalg.eigh(x)[1], 9),
    "svd": (lambda x: jnp.linalg.svd(x)[0], 20),
    "triangular_solve": (lambda x: jax.lax.linalg.triangular_solve(x, x), 1),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_factorizations_take_operations_by_the_cube(name):
    """Before, one an element: a factorization cost nothing to make again."""
    function, per_cube = LINEAR_ALGEBRA[name]
    x = jnp.ones((3, 64, 64))
    expected = 3 * per_cube * 64**3
    factorization = only_equation(name, function, x)
    assert flops(factorization) == pytest.approx(expected, rel=1e-5)
    for target in map(targets.named, targets.names()):
        in_plan = seconds([factorization], 0, 0, target)
        assert in_plan == pytest.approx(expected / target.vector_rate, rel=1e-5)
    processor = targets.named("cpu")
    work = executable_work(jax.jit(function).lower(x).compile(), processor)
    launches = processor.launch_seconds * work.launches
    beside = 20 * x.nbytes / processor.bytes_per_second  # Copies, symmetries, triangles.
    assert expected / processor.vector_rate <= work.seconds
    assert work.seconds <= expected / processor.vector_rate + beside + launches


def depthwise(weights, x):
    """Blocks of a product, a convolution of each channel, and what needs its result."""

    def loss(weights):
        h = x
        for expand, kernel, shrink in weights:
            wide = convolved(96, jnp.tanh(h @ expand), kernel)
            h = h + jnp.tanh(wide) @ shrink
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def test_convolutions_of_each_channel_are_kept_where_products_are_cheaper():
    """3x3 of one channel takes as long as a product of 2,700 rows."""
    layer = jnp.ones((256, 96)), jnp.ones((3, 3, 1, 96)), jnp.ones((96, 256))
    step = coop_jax.remat_train_step(depthwise, budget="70%", donate_argnums=0)
    plan = step.plan([layer] * 6, jnp.ones((4, 16, 16, 256)))
    again = {item.primitive for item in plan.recomputations}
    assert "dot_general" in again
    assert "conv_general_dilated" not in again


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("lapack_sgetrf_ffi", "lu"),
        ("lapack_zheevd_ffi", "eigh"),
        ("cusolver_orgqr_ffi", "householder_product"),
        ("__cusolver$cholesky", "cholesky"),
        ("__cublas$triangularSolve", "triangular_solve"),
        ("lapack_sgtsv_ffi", None),
        ("triangular_mask", None),
        ("my_cholesky_kernel", None),
        ("", None),
    ],
)
def test_calls_of_libraries_are_known_by_their_name_and_others_are_not(target, name):
    assert factorization_of(target) == name


def dropped(weights, x, key):
    """Layers whose activations are masked."""

    def loss(weights):
        h = x
        for number, weight in enumerate(weights):
            bits = jax.random.bits(jax.random.fold_in(key, number), h.shape)
            h = h + jnp.where(bits > jnp.uint32(2**31), jnp.tanh(h @ weight), 0)
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def test_masks_are_kept_where_products_are_cheaper():
    """A product of 32 columns takes 64 operations an element; bits as long as 1,600."""
    weights = [jnp.ones((32, 32)) for _ in range(8)]
    step = coop_jax.remat_train_step(dropped, budget="75%", donate_argnums=0)
    plan = step.plan(weights, jnp.ones((4096, 32)), jax.random.key(0))
    again = {item.primitive for item in plan.recomputations}
    assert again
    assert not again & {"random_bits", "threefry2x32"}
