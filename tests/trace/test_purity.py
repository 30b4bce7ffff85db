"""Equations that may be merged, run again, left out and moved."""

import importlib
import pkgutil
import warnings

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from steps import traced

from coop_jax import targets
from coop_jax.base import _compat
from coop_jax.trace import costs, purity

PERMISSIONS = (purity.may_merge, purity.may_run_again, purity.may_vanish, purity.may_move)
# Modules that need what is not installed, or run something when they are imported.
_NOT_IMPORTED = (
    "tools",
    "test_util",
    "jax2tf",
    "internal_test",
    "_test",
    "collect_profile",
)


def import_all_of_jax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(
            jax.__path__, "jax.", onerror=lambda name: None
        ):
            if not any(part in module.name for part in _NOT_IMPORTED):
                try:
                    importlib.import_module(module.name)
                except ImportError:
                    pass


def test_every_primitive_of_the_installed_jax_is_classified():
    """A new one has to be looked at before it gets a permission."""
    import_all_of_jax()
    defined = {primitive.name for primitive in _compat.primitives_of_programs()}
    assert len(defined) > 250
    assert {"add", "scan", "rng_uniform", "pallas_call", "coop_fence"} <= defined
    assert defined - purity.CLASS_OF.keys() == set()


def test_every_primitive_has_one_class_and_every_class_a_reason():
    names = [name for _, names in purity._CLASSES for name in names.split()]
    assert len(names) == len(set(names))
    assert all(kind.reason for kind, _ in purity._CLASSES)


def equations(function, *arguments, **options):
    jaxpr, _ = _compat.open_jaxpr(jax.make_jaxpr(function, **options)(*arguments))
    return jaxpr.eqns


def permissions(function, *arguments, **options):
    """Of the last equation of a function: merge, run again, vanish, move."""
    eqn = equations(function, *arguments, **options)[-1]
    return "".join("yn"[not permission(eqn)] for permission in PERMISSIONS)


def new_primitive(name):
    primitive = jax.extend.core.Primitive(name)
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    _compat.register_lowering(primitive, lambda ctx, x: [x])
    return primitive


@pytest.mark.parametrize("name", ["mystery", "add", "pallas_call", "coop_fence"])
def test_a_primitive_of_another_library_gets_no_permission(name):
    """Though it may have the name of one that we know."""
    primitive = new_primitive(name)
    assert permissions(primitive.bind, jnp.ones(3)) == "nnnn"
    assert permissions(lambda x: lax.map(primitive.bind, x), jnp.ones(3)) == "nnnn"


def uniform(x):
    return x + lax.rng_uniform(0.0, 1.0, x.shape)


def loop(body):
    return lambda x: lax.fori_loop(0, 3, lambda i, c: body(c), x)


def branch(body):
    return lambda x: lax.cond(x[0] > 0, body, lambda y: y, x)


def called(body):
    return lambda x: jax.jit(body)(x)


def with_a_rule(body):
    function = jax.custom_vjp(body)
    function.defvjp(lambda x: (body(x), None), lambda _, g: (g,))
    return function


def with_a_tangent(body):
    function = jax.custom_jvp(body)
    function.defjvp(lambda p, t: (body(*p), t[0]))
    return function


WRAPPERS = {
    "call": called,
    "loop": loop,
    "branch": branch,
    "custom_vjp": with_a_rule,
    "custom_jvp": with_a_tangent,
    "checkpoint": jax.checkpoint,
}


def host(x):
    return jax.pure_callback(lambda x: np.asarray(x), jax.typeof(x), x)


def with_side_effects(x):
    return io_callback(lambda x: np.asarray(x), jax.typeof(x), x)


def printed(x):
    jax.debug.print("{}", x)
    return x


def counted(x):
    reference = jax.new_ref(x)
    reference[...] += 1
    return jax.ref.freeze(reference)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (jnp.sin, "yyyy"),
        (uniform, "nnnn"),
        (host, "nnyy"),
        (with_side_effects, "nnnn"),
        (printed, "nnnn"),
        (counted, "nnnn"),
    ],
)
def test_a_call_may_do_what_its_equations_may(wrapper, body, expected):
    assert permissions(WRAPPERS[wrapper](body), jnp.ones(3)) == expected


def foreign(**options):
    return jax.ffi.ffi_call("nobody", jax.ShapeDtypeStruct((3,), "float32"), **options)


def kernel(**options):
    def body(x, y):
        y[...] = x[...] * 2

    shape = jax.ShapeDtypeStruct((8, 128), "float32")
    return pl.pallas_call(body, out_shape=shape, **options)


def test_foreign_functions_and_kernels_are_what_they_say():
    assert permissions(foreign(), jnp.ones(3)) == "yyyy"
    assert permissions(foreign(has_side_effect=True), jnp.ones(3)) == "nnnn"
    x = jnp.ones((8, 128))
    assert permissions(kernel(), x) == "yyyy"
    assert permissions(lambda x: lax.map(kernel(), x), x[None]) == "yyyy"
    for says in ({"has_side_effects": True}, {"collective_id": 1}):
        assert (
            permissions(kernel(compiler_params=pltpu.CompilerParams(**says)), x) == "nnnn"
        )


def test_collectives_are_run_again_by_all_devices():
    def total(x):
        return lax.psum(x, "i")

    def shown(x):
        return printed(total(x))

    assert permissions(total, jnp.ones(3), axis_env=[("i", 2)]) == "yyyy"
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    for function, expected in ((total, "yyyy"), (jnp.sin, "yyyy"), (shown, "nnnn")):
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        assert permissions(mapped, jnp.ones(4)) == expected


def test_what_is_sent_has_a_price():
    def total(x):
        return lax.psum(x, "i")

    def gathered(x):
        return lax.scan(lambda x, _: (lax.all_gather(x, "i")[0], None), x, None, 3)[0]

    x, axes = jnp.ones(1000), [("i", 2)]
    [eqn] = equations(total, x, axis_env=axes)
    assert costs.sent_bytes(eqn) == 4000
    assert costs.sent_bytes(equations(gathered, x, axis_env=axes)[-1]) == 3 * 8000
    assert costs.sent_bytes(equations(jnp.sin, x)[-1]) == 0
    for name in ("cpu", "h200", "tpu v5e"):
        target = targets.named(name)
        sent = costs.seconds([eqn], 4000, 4000, target) - 8000 / target.bytes_per_second
        assert sent == pytest.approx(4000 / target.link_bytes_per_second)
    assert targets.named("h200").link_bytes_per_second == pytest.approx(6e11)


def test_references_that_stay_inside_of_a_call():
    def body(references):
        references[0][...] += 1

    def step(x):
        return pl.run_state(body)((x,))

    eqn = equations(step, jnp.ones(3))[-1]
    assert eqn.primitive.name == "run_state"
    assert permissions(step, jnp.ones(3)) == "yyyy"


@pytest.mark.parametrize(
    "make", [uniform, host, with_side_effects, new_primitive("mystery").bind]
)
def test_equal_ones_stay_apart_and_others_merge(make):
    def step(x):
        return make(x) + make(x), jnp.sin(x) * jnp.sin(x)

    made = traced(step, jnp.ones(3)).program
    once = traced(make, jnp.ones(3)).program
    num_special = sum(eqn.primitive.name not in ("add", "sin", "mul") for eqn in made.eqns)
    num_once = sum(eqn.primitive.name not in ("add", "sin", "mul") for eqn in once.eqns)
    assert num_special == 2 * num_once
    assert sum(eqn.primitive.name == "sin" for eqn in made.eqns) == 1


def test_what_nothing_reads_is_left_out_only_if_it_may():
    mystery = new_primitive("mystery")

    def step(x):
        jnp.sin(x)
        host(x)
        lax.rng_uniform(0.0, 1.0, x.shape)
        mystery.bind(x)
        with_side_effects(x)
        return x * 2

    names = [eqn.primitive.name for eqn in traced(step, jnp.ones(3)).program.eqns]
    assert sorted(names) == ["io_callback", "mul", "mystery", "rng_uniform"]
