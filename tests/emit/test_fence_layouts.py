"""A fence changes no value, however XLA lays out what goes in and what comes out."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from operations import FAMILIES, LINEAR_ALGEBRA, OPERATIONS
from steps import LITTLE_CODE, QUICK, as_numpy, assert_trees_equal

import coop_jax
from coop_jax.arena.exchange import Exchange, arena_aval, empty_arena, exchange_p
from coop_jax.arena.layout import Stay
from coop_jax.emit.fence import fence, fence_p
from coop_jax.emit.order_after import after_p

ORDERS = "row-major", "column-major"
PAIRS = list(itertools.product(ORDERS, repeat=2))


def quickly(function):
    """`jax.jit` that leaves machine code as it comes. Layouts are chosen before."""
    return jax.jit(function, compiler_options=LITTLE_CODE)


def laid_out(value, order):
    """The value in an order of dimensions, if it has several and elements (XLA:CPU divides
    by zero laying out an array without)."""
    if (
        value.ndim < 2
        or not value.size
        or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    ):
        return value
    dimensions = range(value.ndim)
    return with_layout_constraint(
        value, Layout(tuple(dimensions if order == "row-major" else dimensions[::-1]))
    )


def across_fences(function, arguments, before, after):
    """Operands come in one order and results are wanted in another. If it is the same,
    what is between the operation and a fence is in the order that XLA wants."""
    operands = fence(*(laid_out(x, before) for x in arguments))
    if before != after:
        operands = [laid_out(x, after) for x in operands]
    results, tree = jax.tree.flatten(function(*operands))
    return jax.tree.unflatten(tree, [laid_out(x, after) for x in fence(*results)])


def assert_close(actual, expected, tolerance=2e-6, of=""):
    """Equal but for the order of sums: a product of other layouts has another one."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        a, b = as_numpy(a), as_numpy(b)
        scale = np.max(np.abs(b.astype(complex)), initial=0) if b.size else 0
        np.testing.assert_allclose(a, b, tolerance, tolerance * float(scale), err_msg=of)


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_between_fences(family):
    """Compiled at once: the layouts of one do not reach another."""
    operations = FAMILIES[family]
    arguments = {name: args for name, (_, *args) in operations.items()}

    def every_way(arguments):
        return {
            name: [across_fences(operations[name][0], args, *pair) for pair in PAIRS]
            for name, args in arguments.items()
        }

    def as_written(arguments):
        return {name: operations[name][0](*args) for name, args in arguments.items()}

    found, expected = (quickly(f)(arguments) for f in (every_way, as_written))
    for name, results in found.items():
        for pair, result in zip(PAIRS, results, strict=True):
            assert_close(result, expected[name], of=f"{name} {pair}")


DTYPES = (
    "float64 float32 bfloat16 float16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 "
    "int4 uint64 uint32 uint16 uint8 uint4 bool complex64 complex128"
).split()
SHAPES = (3, 4), (2, 3, 4), (1, 5), (4, 1), (0, 3), (7,), ()


def moved(shape, dtype):
    """A function of a matrix of a type that goes through fences in every way."""

    def function(x):
        return [across_fences(lambda y: y, [x], *p) for p in PAIRS]

    size = math.prod(shape)
    return function, (jnp.arange(size) % 7 - 3).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_shape(dtype):
    with jax.enable_x64(True):
        for shape in SHAPES:
            function, x = moved(shape, dtype)
            for y in quickly(function)(x):
                assert_trees_equal(y, x)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_keys(implementation):
    keys = jax.random.split(jax.random.key(0, impl=implementation), (2, 3))
    [found] = jax.jit(fence)(keys)
    assert_trees_equal(found, keys)
    [found] = jax.jit(jax.vmap(fence, in_axes=1, out_axes=1))(keys)
    assert_trees_equal(found, keys)


def test_values_of_float0():
    zeros = np.zeros((2, 3), jax.dtypes.float0)

    def step(x):
        _, gradient = jax.value_and_grad(lambda n: 2.0 * n.sum(), allow_int=True)(x)
        assert gradient.dtype == jax.dtypes.float0
        return fence(gradient, x.T)

    found, x = jax.jit(step)(jnp.arange(6).reshape(2, 3))
    assert found.shape == zeros.shape
    assert_trees_equal(x, jnp.arange(6).reshape(2, 3).T)


@pytest.mark.parametrize("name", ["cholesky", "qr", "eigh", "svd", "lu", "solve"])
def test_a_batch_of_fences(name):
    function, *arguments = LINEAR_ALGEBRA[name]

    def every_way(arguments):
        return [
            jax.vmap(lambda *args, p=pair: across_fences(function, args, *p), axis)(
                *(jnp.stack([x, 1.5 * x, 2 * x], axis) for x in arguments)
            )
            for axis, pair in itertools.product((0, 1, 2), PAIRS)
        ]

    expected = jax.vmap(function)(*(jnp.stack([x, 1.5 * x, 2 * x]) for x in arguments))
    for found in quickly(every_way)(arguments):
        assert_close(found, expected)


def test_some_operands_are_not_of_the_batch():
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(4, 3)
    found = jax.jit(jax.vmap(lambda x: fence(laid_out(y, "column-major"), x)))(x)
    assert_trees_equal(found, [jnp.stack([y, y]), x])


@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec()])
def test_on_several_devices(spec):
    mesh = Mesh(np.array(jax.devices()).reshape(4), ("data",))
    operations = {n: OPERATIONS[n] for n in ("cholesky", "qr", "eigh", "svd", "dot")}
    arguments = {
        name: jax.device_put(
            [jnp.stack([x, 1.5 * x, 2 * x, x]) for x in args], NamedSharding(mesh, spec)
        )
        for name, (_, *args) in operations.items()
    }

    def every_way(arguments):
        return {
            name: [
                across_fences(jax.vmap(operations[name][0]), args, *pair) for pair in PAIRS
            ]
            for name, args in arguments.items()
        }

    def only_fences(arguments):
        return {
            name: fence(*jax.tree.leaves(jax.vmap(operations[name][0])(*fence(*args))))
            for name, args in arguments.items()
        }

    text = quickly(only_fences).lower(arguments).compile().as_text()
    assert "coop_fence" in text
    assert "all-gather" not in text
    for name, results in quickly(every_way)(arguments).items():
        expected = jax.vmap(operations[name][0])(*arguments[name])
        for pair, result in zip(PAIRS, results, strict=True):
            assert_close(result, expected, of=f"{name} {pair}")


@pytest.mark.parametrize("manual", [("rows",), ("rows", "columns")])
def test_inside_of_a_shard_map(manual):
    """Arrays whose layout is left to XLA stay divided, too."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
    x = jnp.arange(96.0).reshape(8, 4, 3)
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows", "columns")))
    spec = PartitionSpec(*manual)

    def step(x):
        return across_fences(jnp.sin, [x], "column-major", "column-major")

    def mapped(step):
        return jax.jit(
            jax.shard_map(
                step, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=set(manual)
            )
        )

    text = mapped(lambda x: fence(*fence(2 * x))[0]).lower(x).compile().as_text()
    assert "coop_fence" in text
    assert "all-gather" not in text
    assert_close(mapped(step)(x), jnp.sin(x))


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_fence_that_is_told_an_order(order, devices):
    """A CPU's is row-major all the same."""
    x = jnp.arange(96.0).reshape(8, 3, 4)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))

    def step(x):
        first = laid_out(2 * x, "column-major")
        second = laid_out(3 * x, "row-major")
        found = fence_p.bind(first, second, number=0, layouts=(order,))
        return [laid_out(y, "column-major") for y in found]

    assert_trees_equal(jax.jit(step)(x), [2 * x, 3 * x])


@pytest.mark.parametrize("pair", PAIRS)
def test_a_value_that_waits(pair):
    x = jnp.arange(12.0).reshape(3, 4)

    def step(x):
        value, other = (laid_out(y, pair[0]) for y in (2 * x, 3 * x))
        return laid_out(after_p.bind(value, other), pair[1])

    assert_trees_equal(jax.jit(step)(x), 2 * x)


@pytest.mark.parametrize("pair", PAIRS)
def test_values_in_an_arena(pair):
    """One passes, one is stored at one boundary and loaded at the next."""
    x = jnp.arange(16.0).reshape(4, 4)
    stay = Stay(0, x.nbytes, 0, 1, 64)
    aval = jax.core.ShapedArray(x.shape, x.dtype)
    first = Exchange(0, (stay,), (), is_first=True, is_last=False)
    last = Exchange(1, (), (stay,), is_first=False, is_last=True)

    def step(x):
        stored, passed = (laid_out(y, pair[0]) for y in (2 * x, 3 * x))
        arena = empty_arena(arena_aval(256))
        arena, passed = exchange_p.bind(arena, passed, stored, what=first, loaded=())
        passed = laid_out(passed, pair[1])
        arena, passed, loaded = exchange_p.bind(arena, passed, what=last, loaded=(aval,))
        return laid_out(passed, pair[1]), laid_out(loaded, pair[1])

    assert_trees_equal(jax.jit(step)(x), (3 * x, 2 * x))


def _whitened(hidden, weight):
    product = jnp.tanh(hidden @ weight)
    factor = jnp.linalg.cholesky(product.T @ product / len(hidden) + jnp.eye(len(hidden)))
    return jax.scipy.linalg.solve_triangular(factor, hidden.T, lower=True).T


LAYERS = {
    "solve": lambda h, m: jnp.linalg.solve(m.T @ m + jnp.eye(len(m)), jnp.tanh(h)) + h,
    "cholesky": _whitened,
    "qr": lambda h, m: h + jnp.tanh(h @ jnp.linalg.qr(m + jnp.eye(len(m)))[0]),
    "eigh": lambda h, m: h + jnp.tanh(h @ jnp.linalg.eigh(m + m.T)[1]),
    "svd": lambda h, m: h + jnp.tanh(h @ jnp.linalg.svd(m + jnp.eye(len(m)))[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_planned_step_of_a_network(name):
    layer, size = LAYERS[name], 32
    keys = jax.random.split(jax.random.key(0), 7)
    *weights, x = (jax.random.normal(k, (size, size)) * size**-0.5 for k in keys)

    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                hidden = layer(hidden, w)
            return (hidden**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    planned = coop_jax.remat_train_step(step, budget="96%", planner=QUICK)
    assert not planned.plan(weights, x).is_unmodified
    assert_close(planned(weights, x), jax.jit(step)(weights, x), tolerance=1e-4)
