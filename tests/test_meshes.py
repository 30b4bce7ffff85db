"""Meshes by name: of devices that need not be there, and steps planned for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax.sharding import NamedSharding, PartitionSpec
from steps import NEEDS_CUDA, NEEDS_TPU

import coop_jax
from coop_jax import targets
from coop_jax.backends.tpu import compile_to_buffers
from coop_jax.base.absent_topologies import recipe_of
from coop_jax.compile.traced_step import TracedStep
from coop_jax.searches import loop_search_of
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, BATCH = 8, 256, 4096


def step(weights, x):
    def loss(weights):
        def body(x, w):
            return x + jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]), None

        return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def arguments(mesh, batch=BATCH):
    """FSDP: batch and weights are divided over all devices."""
    axes = mesh.axis_names

    def typed(shape, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, "float32", sharding=sharding)

    up = typed((LAYERS, WIDTH, 4 * WIDTH), None, axes)
    down = typed((LAYERS, 4 * WIDTH, WIDTH), None, None, axes)
    return {"up": up, "down": down}, typed((batch, WIDTH), axes)


def test_host_devices_by_name():
    mesh = targets.mesh("cpu x4", {"data": 2, "tensor": 2})
    assert mesh.shape == {"data": 2, "tensor": 2}
    assert list(mesh.devices.flat) == jax.devices()[:4]
    assert mesh == targets.mesh("CPU  x4", {"data": 2, "tensor": 2})


@pytest.mark.parametrize(
    "name", ["tpu v5e", "tpu v5e x16", "h200:2x4", "cpu:4", "h200 x0", "", "x4", 8]
)
def test_names_of_another_form_are_refused(name):
    with pytest.raises(ValueError, match="must be") as caught:
        targets.mesh(name, {"x": 4})
    text = str(caught.value)
    assert '`mesh(name=...)` must be of the form "tpu v5e:4x4"' in text or (
        "`target=` must be one of" in text
    )
    assert f"Got {name!r}" in text or "Got 'x4'" in text


@pytest.mark.parametrize("axes", [{"x": 3}, {"x": 4, "y": 2}, {}])
def test_sizes_that_are_not_the_number_of_devices_are_refused(axes):
    product = " x ".join(map(str, axes.values())) or "no axis"
    with pytest.raises(ValueError, match="whose product") as caught:
        targets.mesh("cpu x4", axes)
    assert str(caught.value) == (
        "`mesh(axes=...)` must have sizes whose product is the number of devices. Got "
        f"{product} for the 4 of 'cpu x4'. Change the sizes or the name."
    )


def test_host_devices_have_to_be_there():
    with pytest.raises(ValueError, match="to be there") as caught:
        targets.mesh("cpu x1000", {"x": 1000})
    text = str(caught.value)
    assert "devices of 'cpu' have to be there. Got 'cpu x1000' and " in text
    assert "XLA_FLAGS=--xla_force_host_platform_device_count=1000 before jax" in text


def test_gpus_are_whole_hosts():
    with pytest.raises(ValueError, match=r"whole hosts of 8. Got 'h200 x12'. Choose a mul"):
        targets.mesh("h200 x12", {"x": 12})


def test_a_plan_is_per_device_and_says_so():
    args = arguments(targets.mesh("cpu x4", {"fsdp": 4}), batch=1024)
    compiled = jax.jit(step, donate_argnums=0).lower(*args).compile()
    needed = memory_figures(compiled).total_bytes
    fits = coop_jax.fit(step, *args, budget="100%", target="cpu", donate_argnums=0)
    assert "per device, 4 devices: the step fits as written\n" in str(fits)
    plan = coop_jax.fit(step, *args, budget="80%", donate_argnums=0)
    assert plan.num_devices == 4
    assert plan.unmodified_bytes == fits.measured_bytes == needed
    assert plan.measured_bytes <= 0.8 * needed
    assert str(plan).startswith("coop_jax plan for cpu, per device, 4 devices\n")


def test_one_loop_that_recomputes_more_is_tried_beside_two():
    """On several devices XLA may divide the work of two loops worse than that of one."""
    args = arguments(targets.mesh("cpu x4", {"fsdp": 4}), batch=1024)
    needed = memory_figures(jax.jit(step).lower(*args).compile()).total_bytes
    traced = TracedStep.trace(step, {}, args, {})
    search = loop_search_of(traced, "search", needed, lambda line: None)
    budget = int(0.7 * needed)
    found = search.best(budget)
    compiled = list(search._compiled.of_stretch(0))
    assert [len(m.loops.planned[0].parts) for m in compiled if m.keeps(budget)] == [2, 1]
    assert found.executable_seconds == min(
        m.executable_seconds for m in compiled if m.keeps(budget)
    )


def test_comparisons_are_per_device_and_say_so():
    args = arguments(targets.mesh("cpu x4", {"fsdp": 4}), batch=1024)
    compared = coop_jax.compare(
        lambda wrap: step, *args, policies={}, budgets=(), target="cpu"
    )
    compiled = jax.jit(step).lower(*args).compile()
    needed = memory_figures(compiled).total_bytes
    assert compared.unmodified.measured_bytes == needed
    assert str(compared).startswith("coop_jax comparison on cpu, per device, 4 devices\n")


@NEEDS_TPU
def test_tpus_by_arrangement():
    mesh = targets.mesh("tpu v5e:4x4", {"fsdp": 16})
    assert mesh.devices.shape == (16,)
    assert {d.device_kind for d in mesh.devices.flat} == {"TPU v5 lite"}
    assert mesh == targets.mesh("v5e:4x4", {"fsdp": 16})
    coordinates = np.array([d.coords for d in mesh.devices])
    assert (np.abs(np.diff(coordinates, axis=0)).sum(1) == 1).all(), "neighbours are linked"
    assert targets.mesh("tpu v6e:2x4", {"a": 2, "b": 4}).size == 8
    slices = targets.mesh("tpu v5e:2x2 x2", {"slice": 2, "fsdp": 4})
    assert [d.slice_index for d in slices.devices[:, 0]] == [0, 1]


@NEEDS_TPU
def test_arrangements_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="arrangement of chips") as caught:
        targets.mesh("tpu v5e:3x3", {"x": 9})
    text = str(caught.value)
    assert "must be an arrangement of chips that XLA:TPU knows. Got 'tpu v5e:3x3'" in text
    assert "Choose another one, such as 'tpu v5e:2x2'." in text


@NEEDS_TPU
@pytest.mark.slow
def test_compilations_to_the_buffers_are_as_whole_ones_on_several_devices():
    args = arguments(targets.mesh("tpu v5e:2x2", {"fsdp": 4}), batch=2**16)
    traced = TracedStep.trace(step, {"donate_argnums": 0}, args, {})
    lowered = traced.lower_as_written()
    assigned = traced.compile_lowered(lowered)
    assert isinstance(assigned, compile_to_buffers.AssignedStep)
    assert recipe_of(traced.device()).arrangement == "2x2"
    found = assigned.memory_analysis()
    whole = lowered.compile().memory_analysis()
    assert found.argument_size_in_bytes == whole.argument_size_in_bytes
    assert found.output_size_in_bytes == whole.output_size_in_bytes
    assert found.alias_size_in_bytes == whole.alias_size_in_bytes


@NEEDS_TPU
def test_a_step_is_planned_for_chips_that_are_not_there():
    args = arguments(targets.mesh("tpu v5e:2x2", {"fsdp": 4}), batch=2**18)
    plan = coop_jax.fit(step, *args, budget="60%", donate_argnums=0)
    assert plan.measured_bytes <= plan.budget_bytes < plan.unmodified_bytes
    assert "tpu v5e (15.75 GiB), per device, 4 devices\n" in str(plan)
    assert plan.loops


@NEEDS_CUDA
def test_a_step_is_planned_for_gpus_that_are_not_there():
    args = arguments(targets.mesh("h200 x4", {"data": 2, "tensor": 2}), batch=2**16)
    planned = coop_jax.remat_train_step(step, budget="60%", donate_argnums=0)
    plan = planned.plan(*args, target="h200")
    assert plan.measured_bytes <= plan.budget_bytes < plan.unmodified_bytes
    assert plan.num_devices == 4
    assert plan.target == "h200"
    compiled = planned.lower(*args).compile()
    assert memory_figures(compiled).total_bytes == plan.measured_bytes
    as_written = jax.jit(step, donate_argnums=0).lower(*args).compile()
    assert collectives(as_written)
    assert collectives(compiled) <= collectives(as_written)
