"""The gradient of a pooling, with one array of indices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    TARGET,
    assert_trees_equal,
    compiled_graph,
    pooled_arguments,
    pooled_step,
    traced,
)

from coop_jax import backends
from coop_jax.backends.cpu.pool_gradient import (
    is_replaceable,
    pool_gradient_p,
    scratch_bytes,
)
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import planner_options, smallest_pool
from coop_jax.trace.replacements import original
from coop_jax.xla.memory_figures import memory_figures


def pooling(reduce, window, strides, padding):
    init = -jnp.inf if reduce is jax.lax.max else jnp.inf

    def loss(x, weights):
        pooled = jax.lax.reduce_window(x, init, reduce, window, strides, padding)
        return (pooled * weights[tuple(map(slice, pooled.shape))]).sum()

    return jax.grad(loss)


@pytest.mark.parametrize("reduce", [jax.lax.max, jax.lax.min])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(
    ("window", "strides"),
    [((1, 2, 2, 1), (1, 2, 2, 1)), ((1, 3, 3, 1), (1, 2, 2, 1)), ((1, 3, 3, 1), (1,) * 4)],
)
@pytest.mark.parametrize("values", ["normal", "ties", "infinite", "nan"])
def test_the_same_bits_as_xla(reduce, padding, window, strides, values):
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 9, 8, 3)).astype(np.float32)
    if values == "ties":
        x = np.round(x)
    if values == "infinite":
        x[:, 2:6] = -np.inf if reduce is jax.lax.max else np.inf
    if values == "nan":
        x[0, 3, 3] = x[1, 0, 0] = np.nan
    arguments = x, random.normal(size=x.shape).astype(np.float32)
    step = traced(pooling(reduce, window, strides, padding), *arguments)
    assert sum(eqn.primitive is pool_gradient_p for eqn in step.program.eqns) == 1
    want = jax.jit(step.fn)(*arguments)
    got = step.jit(step.program)(*arguments)
    np.testing.assert_array_equal(got, want)


def test_xla_makes_it_when_it_is_needed():
    """And not at the beginning of the step: then it would stay until it is read."""
    arguments = pooled_arguments(batch=8, image=64, levels=1)
    step = traced(pooled_step, *arguments, donate_argnums=0)
    compiled = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, compiled)
    assert found.kept_constant_bytes < 64  # Scalars.
    [gradient] = [e for e in step.program.eqns if e.primitive is pool_gradient_p]
    assert found.workspace_bytes[step.program.eqns.index(gradient)] == scratch_bytes(
        gradient
    )
    graph = build_graph(step.program, found, TARGET)
    pool = smallest_pool(graph, planner_options("search", 64))
    segments = cut(graph, pool.schedule, fence_free_inputs=False)
    originals = dataclasses.replace(
        step.program, eqns=tuple(map(original, step.program.eqns))
    )
    measured, with_xlas = (
        memory_figures(step.compile(rewrite(with_program(graph, p), segments))).total_bytes
        for p in (step.program, originals)
    )
    # Three more arrays of indices.
    assert with_xlas - measured > 2 * gradient.outvars[0].aval.size * 4


def with_program(graph, program):
    return dataclasses.replace(graph, program=program)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_other_types_are_left_to_xla(dtype):
    x = jnp.ones((1, 4, 4, 1), dtype)
    program = jax.make_jaxpr(
        lambda x, g: jax.lax.select_and_scatter_add_p.bind(
            g,
            x,
            select_prim=jax.lax.ge_p,
            window_dimensions=(1, 2, 2, 1),
            window_strides=(1, 2, 2, 1),
            padding=((0, 0),) * 4,
        )
    )(x, x[:, ::2, ::2])
    [eqn] = program.jaxpr.eqns
    assert not is_replaceable(eqn)


def test_other_platforms_keep_theirs():
    step = traced(pooled_step, *pooled_arguments(), donate_argnums=0)
    eqns = [original(eqn) for eqn in step.program.eqns]
    assert sum(is_replaceable(eqn) for eqn in eqns) == 2
    as_written = dataclasses.replace(step.program, eqns=tuple(eqns))
    for platform in ("gpu", "tpu"):
        assert backends.named(platform).prepare(as_written) is as_written


def test_over_several_devices_it_is_left_to_xla():
    mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices()[:2])
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    weights, images = pooled_arguments()
    arguments = jax.device_put(weights, whole), jax.device_put(images, spread)
    step = traced(pooled_step, *arguments, donate_argnums=0)
    assert step.num_devices() == 2
    assert not any(eqn.primitive is pool_gradient_p for eqn in step.program.eqns)


def test_it_can_be_batched_and_differentiated():
    arguments = pooled_arguments(levels=1)
    step = traced(pooled_step, *arguments)
    function = step.function(step.program)
    weights, images = arguments
    batched = jax.tree.map(lambda w: jnp.stack([w, 2 * w]), weights)
    got, want = (jax.vmap(f, (0, None))(batched, images) for f in (function, step.fn))
    assert_trees_equal(got, want)

    def total(f):
        return lambda scale: sum(
            jnp.sum(new)
            for new in jax.tree.leaves(
                f(jax.tree.map(lambda w: scale * w, weights), images)
            )
        )

    got, want = (float(jax.jvp(total(f), (1.0,), (1.0,))[1]) for f in (function, step.fn))
    assert got == pytest.approx(want, rel=1e-5)


def test_messages_say_what_was_traced():
    step = traced(pooled_step, *pooled_arguments(), donate_argnums=0)
    graph = compiled_graph(step)
    named = [graph.describe(k) for k in range(len(graph.operations))]
    assert sum(name.startswith("`select_and_scatter_add` at") for name in named) == 2
