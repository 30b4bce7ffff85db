"""Buffers derived from a scheduled module, against the assignment that XLA publishes.

Where XLA publishes one, on CPU, it is the truth; elsewhere its temporaries are. Devices
that are not there need JAX's CUDA plugin or libtpu; without, their tests are skipped.
"""

import jax
import pytest
from steps import NEEDS_CUDA, NEEDS_TPU, mlp_arguments, mlp_step, traced

from coop_jax import backends
from coop_jax.graph import stored_values
from coop_jax.targets import TPU_ALIGNMENT
from coop_jax.xla import absent_devices, buffers_from_schedule, liveness, shapes
from coop_jax.xla.buffer_assignment import read_stored_module
from coop_jax.xla.hlo_module import read_module
from coop_jax.xla.memory_figures import memory_figures


def module_of(compiled):
    [module] = compiled.runtime_executable().hlo_modules()
    return read_module(module.as_serialized_hlo_module_proto())


def compiled_for(target, **sizes):
    """The tagged MLP step for a device that is not there: shapes, no arrays."""
    shapes = jax.eval_shape(lambda: mlp_arguments(**sizes))
    step = traced(
        mlp_step,
        *absent_devices.placed(shapes, absent_devices.named_device(target)),
        donate_argnums=0,
    )
    return step, step.compile(stored_values.tag(step.program))


@pytest.mark.parametrize(
    ("dimensions", "tiles", "padded"),
    [
        ([], [], 1),
        ([], [[128]], 128),
        ([3, 5], [], 15),
        ([3, 5], [[8, 128]], 8 * 128),
        ([7, 9, 130], [[8, 128]], 7 * 16 * 256),
        ([32, 128, 64], [[8, 128], [2, 1]], 32 * 128 * 128),
        ([128, 1, 128], [[1, 128]], 128 * 128),
        ([130], [[8, 128]], 8 * 256),
    ],
)
def test_tiles_pad_the_last_physical_dimensions(dimensions, tiles, padded):
    elements = 1
    for dimension in shapes.tiled(dimensions, tiles):
        elements *= dimension
    assert elements == padded


def test_every_buffer_of_an_assignment_is_derived_from_the_schedule():
    step = traced(mlp_step, *mlp_arguments(), donate_argnums=0)
    compiled = step.compile(stored_values.tag(step.program))
    stored = read_stored_module(compiled)
    assert stored.unlisted_bytes == 0

    def sizes(buffers):
        return {
            (b.instruction, b.shape_index): b.size_bytes
            for b in buffers
            if b.kind != "other"
            and stored.instructions[b.instruction].opcode != "parameter"
        }

    derived = buffers_from_schedule.stored_buffers(module_of(compiled))
    assert sizes(derived) == sizes(stored.buffers)
    # XLA lets an elementwise operation write over an operand: one activation less.
    activation_bytes = 512 * 64 * 4
    heap_bytes = liveness.heap_bytes(module_of(compiled))
    assert 0 <= heap_bytes - memory_figures(compiled).temp_bytes <= activation_bytes


@NEEDS_CUDA
def test_a_gpu_that_is_not_there():
    step, compiled = compiled_for("h200", batch=4096, width=256)
    heap_bytes = liveness.heap_bytes(module_of(compiled))
    assert heap_bytes == pytest.approx(memory_figures(compiled).temp_bytes, rel=0.1)
    assert backends.stored_values(step.program, compiled).source == "compiled"


@NEEDS_TPU
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tpu_that_is_not_there(dtype):
    """Activations too large for the chip's vector memory all lie in main memory."""
    step, compiled = compiled_for("v5e", layers=4, batch=131072, width=256, dtype=dtype)
    heap_bytes = liveness.heap_bytes(module_of(compiled), alignment=TPU_ALIGNMENT)
    assert heap_bytes == pytest.approx(memory_figures(compiled).temp_bytes, rel=0.01)
    found = backends.stored_values(step.program, compiled)
    assert found.source == "compiled"
    unlisted_bytes = max(0, memory_figures(compiled).temp_bytes - heap_bytes)
    assert found.unlisted_bytes == unlisted_bytes
    if dtype == "float32":
        tanh = [e.outvars[0] for e in step.program.eqns if e.primitive.name == "tanh"]
        assert all(v in found.stored_bytes for v in tanh)


@NEEDS_TPU
def test_vector_memory_of_a_tpu_is_not_main_memory():
    step, compiled = compiled_for("v5e", layers=4, batch=1024, width=256)
    buffers = buffers_from_schedule.stored_buffers(module_of(compiled))
    activation_bytes = 1024 * 256 * 4
    in_vector_memory = [b for b in buffers if activation_bytes in b.value_sizes]
    assert sum(b.kind == "temp" for b in in_vector_memory) >= 4
    assert all(b.size_bytes == 0 for b in in_vector_memory if b.kind == "temp")
    near = [b.near_bytes for b in in_vector_memory if b.kind == "temp"]
    assert min(near) >= activation_bytes // 2
    found = backends.stored_values(step.program, compiled)
    tanh = [e.outvars[0] for e in step.program.eqns if e.primitive.name == "tanh"]
    assert tanh
    assert all(found.stored_bytes[v] >= activation_bytes // 2 for v in tanh)
