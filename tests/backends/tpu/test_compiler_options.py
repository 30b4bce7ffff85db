"""What XLA is told of every version of a step, and that the user has the last word."""

import jax
import jax.numpy as jnp
from steps import NEEDS_TPU, mlp_arguments, mlp_step, traced

from coop_jax.backends.tpu.compiler_options import compiler_options
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

PACKS_ONCE = "xla_tpu_buffer_assignment_enable_fast_merge_fallback"


def test_tpus_are_told_to_pack_well():
    assert compiler_options("tpu", None) == {PACKS_ONCE: False}
    assert compiler_options("tpu", {"a": 1}) == {PACKS_ONCE: False, "a": 1}
    assert compiler_options("tpu", {PACKS_ONCE: True}) == {PACKS_ONCE: True}


def test_nothing_is_told_elsewhere():
    assert compiler_options("cpu", None) == compiler_options("gpu", {}) == {}
    assert compiler_options("cpu", {"a": 1}) == {"a": 1}
    step = traced(mlp_step, *mlp_arguments())
    assert step.jit_options.get("compiler_options") is None


def growing(x, y):
    """Of its temporaries XLA:TPU's first packing leaves gaps."""
    for _ in range(6):
        x = jnp.tanh(x @ y)
        y = y + x.T
    return (x * y).sum()


@NEEDS_TPU
def test_a_tpu_needs_less_so():
    sharding = jax.sharding.SingleDeviceSharding(absent_devices.named_device("tpu v5e"))
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32, sharding=sharding)
    gradient = jax.grad(growing, argnums=(0, 1))

    def temp_bytes(**options):
        step = traced(gradient, x, x, **options)
        return memory_figures(step.compile(step.program)).temp_bytes

    well, at_once = temp_bytes(), temp_bytes(compiler_options={PACKS_ONCE: True})
    assert well <= at_once
    if jax.__version_info__ >= (0, 12):  # The order of before leaves no gaps here.
        assert well < 0.9 * at_once
