"""Equations that may be merged, run again, left out and moved; plans keep to it."""

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
from random_programs import random_schedule
from steps import TARGET, assert_trees_equal, mlp_arguments, mlp_step, run, traced

import coop_jax
from coop_jax import _ext
from coop_jax.base import _compat
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.trace import purity

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


def test_collectives_are_not_run_again():
    def total(x):
        return lax.psum(x, "i")

    assert permissions(total, jnp.ones(3), axis_env=[("i", 2)])[1] == "n"
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=jax.P())
    assert permissions(mapped, jnp.ones(4)) == "ynyy"
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    assert permissions(mapped, jnp.ones(4)) == "yyyy"


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


def evicted_everywhere(step, arguments, seed=0):
    """The step with everything recomputed that may be."""
    made = traced(step, *arguments)
    graph = build_graph(made.program, from_rules(made.program), TARGET)
    schedule = random_schedule(graph, seed, eviction_rate=1.0)
    assert _ext.validate(graph.core, schedule) == []
    assert (schedule.steps[:, 0] == _ext.Schedule.RECOMPUTE).any()
    return rewrite(graph, cut(graph, schedule, fence_free_inputs=bool(seed % 2)))


def noisy_step(weights, x):
    def loss(weights):
        hidden = x
        for w in weights:
            keep = lax.rng_uniform(0.0, 1.0, hidden.shape) < 0.5
            hidden = hidden + jnp.tanh(hidden @ w) * keep
        return jnp.mean(hidden**2)

    return jax.grad(loss)(weights)


def test_numbers_are_drawn_as_often_as_written():
    arguments = mlp_arguments(layers=4)
    program = evicted_everywhere(noisy_step, arguments)
    assert sum(eqn.primitive.name == "rng_uniform" for eqn in program.eqns) == 4

    planned = coop_jax.remat_train_step(noisy_step, budget="85%")
    assert not planned.plan(*arguments).is_unmodified

    def num_draws(step):
        text = step.lower(*arguments).compile().as_text()
        return text.count(" rng-get-and-update-state(")

    assert num_draws(planned) == num_draws(jax.jit(noisy_step)) == 4


def test_a_mask_is_the_same_forwards_and_backwards():
    """Drawn anew it would be another one."""

    def step(weights, x):
        def loss(weights):
            total, hidden = 0.0, x
            for w in weights:
                keep = lax.rng_uniform(0.0, 1.0, hidden.shape) < 0.5
                hidden = jnp.where(keep, hidden * w[0, 0], 0)
                total += hidden.sum()
            return total

        value, gradients = jax.value_and_grad(loss)(weights)
        # Linear in each first weight: what they say of the value has to agree.
        return value, gradients[0][0, 0] * weights[0][0, 0]

    arguments = mlp_arguments(layers=3)
    program = evicted_everywhere(step, arguments)
    value, same = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))(
        *jax.tree.leaves(arguments)
    )
    np.testing.assert_allclose(value, same, rtol=1e-4)


def recorded_step(weights, x):
    """References are read and written in between."""
    record = jax.new_ref(jnp.zeros(4))
    record[0] = x.sum()
    new_weights, value = mlp_step(weights, x)
    first = record[...]
    record[1] = value + first[0]
    record[2] = new_weights[0].sum() + record[1]
    jax.ref.addupdate(record, 2, 1.0)
    lax.fori_loop(0, 3, lambda i, _: record.__setitem__(3, record[3] + i), None)
    return new_weights, value, first, jax.ref.freeze(record)


def test_references_keep_their_order():
    arguments = mlp_arguments()
    expected = jax.jit(recorded_step)(*arguments)
    for seed in range(3):
        program = evicted_everywhere(recorded_step, arguments, seed)
        found = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))(
            *jax.tree.leaves(arguments)
        )
        for a, b in zip(found, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_argument", [False, True])
def test_references_from_outside_are_written_once_a_step(is_argument):
    weights, x = mlp_arguments()
    counter = jax.new_ref(jnp.zeros(()))

    def step(weights, x, *references):
        [reference] = references or [counter]
        reference[...] = 2 * reference[...] + 1
        return mlp_step(weights, x)

    arguments = (weights, x, counter) if is_argument else (weights, x)
    planned = coop_jax.remat_train_step(step, budget="80%")
    assert not planned.plan(*arguments).is_unmodified
    for expected in (1, 3, 7):
        planned(*arguments)
        assert float(counter[...]) == expected


def test_tokens_go_around_fences():
    def step(weights, x):
        token = lax.create_token()
        results = mlp_step(weights, x)
        return results, lax.after_all(token) is None

    arguments = mlp_arguments()
    planned = coop_jax.remat_train_step(step, budget="80%")
    assert not planned.plan(*arguments).is_unmodified
    for a, b in zip(
        jax.tree.leaves(planned(*arguments)),
        jax.tree.leaves(jax.jit(step)(*arguments)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_kernel_is_recomputed():
    """Its body reads and writes references, its call has no effects."""

    def step(weights, x):
        def body(x_ref, y_ref):
            y_ref[...] = x_ref[...] * 2

        twice = pl.pallas_call(body, out_shape=jax.typeof(x), interpret=True)
        hidden = twice(x)
        first = jnp.tanh(hidden @ weights[0])
        return hidden.sum(), (first @ weights[1]).sum(), (hidden.T @ first).sum()

    arguments = mlp_arguments(layers=2)
    program = evicted_everywhere(step, arguments)
    assert sum(eqn.primitive.name == "pallas_call" for eqn in program.eqns) > 1
    expected = run(traced(step, *arguments).program, arguments)
    assert_trees_equal(run(program, arguments), expected)
