"""Layouts of results and of what is kept, and that fences keep them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    NEEDS_TPU,
    adam_shapes,
    adam_step,
    mlp_arguments,
    mlp_step,
    traced,
    xla_placement,
)

from coop_jax import backends
from coop_jax.emit.fence import fence_p
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import planner_options, smallest_pool
from coop_jax.targets import TPU_ALIGNMENT, named
from coop_jax.xla import absent_devices
from coop_jax.xla.hlo_module import read_module


def layouts_of(step):
    compiled = step.compile(stored_values.tag(step.program))
    return backends.named("tpu").stored_values(step.program, compiled).layouts


def test_results_have_one_each():
    weights, x = mlp_arguments(layers=2)
    step = traced(mlp_step, weights, x, donate_argnums=0)
    *results, _loss = step.program.outvars
    orders = layouts_of(step)
    assert {v: orders[v] for v in results} == dict.fromkeys(results, (0, 1))


def test_what_is_kept_has_the_order_that_it_is_kept_in():
    """An array of one dimension has no order."""
    step = traced(adam_step, *adam_shapes(blocks=2, batch=64, width=8))
    found = layouts_of(step)
    products = [
        eqn.outvars[0]
        for eqn in step.program.eqns
        if eqn.primitive.name == "dot_general" and eqn.outvars[0].aval.shape == (64, 32)
    ]
    assert {found.get(v) for v in products} >= {(0, 1)}
    assert all(sorted(order) == list(range(v.aval.ndim)) for v, order in found.items())
    assert all(v.aval.ndim > 1 for v in found)


def test_kernels_and_images_of_convolutions_are_left_to_xla():
    def step(kernel, head, images):
        def loss(kernel, head):
            rows = jax.lax.conv(images, kernel, (1, 1), "SAME")
            return jnp.mean((rows.reshape(len(rows), -1) @ head) ** 2)

        gradients = jax.grad(loss, (0, 1))(kernel, head)
        return kernel - gradients[0], head - gradients[1]

    shapes = (4, 4, 3, 3), (256, 10), (2, 4, 8, 8)
    step = traced(step, *map(jnp.ones, shapes), donate_argnums=(0, 1))
    _, head = step.program.outvars
    found = layouts_of(step)
    assert found[head] == (0, 1)
    assert {len(v.aval.shape) for v in found} == {2}


def test_fences_keep_the_order_of_whatever_passes():
    step = traced(adam_step, *adam_shapes(blocks=4, batch=64, width=8))
    compiled = step.compile(stored_values.tag(step.program))
    stored = backends.named("tpu").stored_values(step.program, compiled)
    graph = build_graph(step.program, stored, named("v5e"))
    schedule = smallest_pool(graph, planner_options("search", TPU_ALIGNMENT)).schedule
    placement = xla_placement(step.program, "tpu", stored)
    program = placement.realize(graph, schedule).program
    kept = [
        (v.aval.shape, order)
        for eqn in program.eqns
        if eqn.primitive is fence_p
        for v, order in zip(eqn.invars, eqn.params["layouts"], strict=False)
        if order is not None
    ]
    assert all(sorted(order) == list(range(len(shape))) for shape, order in kept)
    results = {v.aval.shape for v in program.outvars}
    assert {shape for shape, _ in kept} - results, "activations"


@pytest.mark.parametrize(("platform", "constraints"), [("tpu", 1), ("cuda", 0), ("cpu", 4)])
def test_what_a_fence_is_told(platform, constraints):
    """On a CPU that all is row-major, before and behind."""

    def step(x, y):
        return fence_p.bind(x.T, y, number=0, layouts=((1, 0), None))

    traced_step = jax.jit(step).trace(jnp.ones((3, 4)), jnp.ones((4, 3)))
    text = traced_step.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("@LayoutConstraint") == constraints
    if platform == "tpu":
        assert "result_layouts = [dense<[0, 1]>" in text


def test_a_batch_of_fences_has_other_dimensions():
    def step(x):
        return fence_p.bind(x, number=0, layouts=((1, 0),))

    x = np.arange(24.0).reshape(2, 3, 4)
    [y] = jax.vmap(step)(x)
    np.testing.assert_array_equal(x, y)
    text = jax.jit(jax.vmap(step)).trace(x).lower(lowering_platforms=("tpu",)).as_text()
    assert "@LayoutConstraint" not in text


@NEEDS_TPU
def test_results_do_not_wait_to_be_copied():
    """Moments in an order of their own once did, until the end of the step."""
    device = absent_devices.named_device("v5e")
    shapes = absent_devices.placed(adam_shapes(), device)
    step = traced(adam_step, *shapes, donate_argnums=(0, 1))
    tagged = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, tagged)
    assert stored.layouts
    graph = build_graph(step.program, stored, named("v5e"), early=True)
    schedule = smallest_pool(graph, planner_options("search", TPU_ALIGNMENT)).schedule
    placement = xla_placement(step.program, "tpu", stored)
    compiled = step.compile(placement.realize(graph, schedule).program)
    module = read_module(compiled.module)
    order = module.sequences[module.entry]
    when = {number: at for at, number in enumerate(order)}
    results = module.instructions[module.roots[module.entry]].operands
    assert len(results) == len(step.program.outvars)
    copies = [number for number in results if module.instructions[number].opcode == "copy"]
    waits = [when[n] - when[module.instructions[n].operands[0]] for n in copies]
    assert max(waits, default=0) < 0.05 * len(order)
