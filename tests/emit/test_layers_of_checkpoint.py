"""Layers made again, beside the executables of `jax.checkpoint`."""

import jax
import pytest
from emit.layered_steps import (
    attention_arguments,
    attention_step,
    residual_arguments,
    residual_step,
)
from steps import NEEDS_CUDA, NEEDS_TPU, traced

from coop_jax.compile.as_written import compile_tagged
from coop_jax.emit.inside_readers import with_inside_readers
from coop_jax.emit.layers_again import Layers
from coop_jax.targets import target_of
from coop_jax.xla.absent_devices import named_device, placed
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

RESIDUAL = residual_step, residual_arguments
ATTENTION = attention_step, attention_arguments


@pytest.mark.parametrize(
    ("name", "function", "arguments"),
    [
        pytest.param("h200", *RESIDUAL, marks=NEEDS_CUDA),
        pytest.param("h200", *ATTENTION, marks=[NEEDS_CUDA, pytest.mark.slow]),
        pytest.param("tpu v5e", *RESIDUAL, marks=NEEDS_TPU),
        pytest.param("tpu v5e", *ATTENTION, marks=NEEDS_TPU),
    ],
)
def test_layers_are_those_of_jax_checkpoint(name, function, arguments):
    """All of them run again: no more bytes, and no more time."""
    args = placed(arguments(), named_device(name))
    step = traced(function, *args, donate_argnums=0)
    target = target_of(step.device())
    stored = step.backend.stored_values(step.program, compile_tagged(step))
    layers = Layers(step.program, stored, target)
    inside = layers.kept(layers.blocks(), lambda index: 1e-30)
    ours = step.compile(with_inside_readers(step.program, inside))
    policy = jax.jit(lambda *args: function(*args, jax.checkpoint), donate_argnums=0)
    theirs = step.compile_lowered(policy.lower(*args))
    needed, allowed = (memory_figures(one).total_bytes for one in (ours, theirs))
    assert needed <= 1.01 * allowed
    seconds = [executable_seconds(one, target) for one in (ours, theirs)]
    assert seconds[0] <= 1.01 * seconds[1]
