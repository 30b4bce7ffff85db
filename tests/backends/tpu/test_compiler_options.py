"""Compiler options of every version of a step; those of the user take precedence."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_TPU, mlp_arguments, mlp_step, traced

from coop_jax import backends
from coop_jax.compile import traced_step
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

PACKS_ONCE = "xla_tpu_buffer_assignment_enable_fast_merge_fallback"


def options_of_a_step(monkeypatch, platform, given):
    backend = backends.named(platform)
    monkeypatch.setattr(traced_step, "backend_of", lambda device: backend)
    step = traced(mlp_step, *mlp_arguments(), compiler_options=given)
    return step.jit_options.get("compiler_options")


def test_tpus_pack_well_unless_the_user_says_otherwise(monkeypatch):
    def options(given):
        return options_of_a_step(monkeypatch, "tpu", given)

    assert options(None) == {PACKS_ONCE: False}
    assert options({"a": 1}) == {PACKS_ONCE: False, "a": 1}
    assert options({PACKS_ONCE: True}) == {PACKS_ONCE: True}


@pytest.mark.parametrize("platform", ["cpu", "gpu", "unknown"])
def test_elsewhere_there_are_none_but_the_users(monkeypatch, platform):
    assert options_of_a_step(monkeypatch, platform, None) is None
    assert options_of_a_step(monkeypatch, platform, {"a": 1}) == {"a": 1}


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
