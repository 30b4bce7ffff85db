"""Zeros that XLA must not share between segments."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from steps import (
    NEEDS_CUDA,
    assert_trees_equal,
    planned_program,
    pooled_arguments,
    pooled_step,
    run,
    traced,
)

from coop_jax import backends
from coop_jax.backends.gpu.shared_zeros import shared_zeros
from coop_jax.trace.replacements import original
from coop_jax.xla import absent_devices


def as_on_a_gpu(args=None):
    """As traced, with XLA's gradients of poolings: those of a CPU are others."""
    args = pooled_arguments() if args is None else args
    step = traced(pooled_step, *args, donate_argnums=0)
    eqns = tuple(map(original, step.program.eqns))
    return dataclasses.replace(step, program=dataclasses.replace(step.program, eqns=eqns))


def planned(step, platform):
    """The rewritten program under 60 % of its bytes, as for a platform."""
    return planned_program(step, backends.named(platform), 0.6)


def test_equations_that_would_share_the_zeros_of_a_pooling():
    step = as_on_a_gpu()
    eqns = step.program.eqns
    pooled = {
        e.outvars[0].aval.shape
        for e in eqns
        if e.primitive.name == "select_and_scatter_add"
    }
    assert len(pooled) == 2
    found = shared_zeros(step.program)
    assert {eqns[i].primitive.name for i in found} >= {"max", "gt"}
    assert {eqns[i].outvars[0].aval.shape for i in found} == pooled


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_other_platforms_scatter_into_no_array(platform):
    step = as_on_a_gpu()
    hints = backends.named(platform).fence_hints(step.program, None)
    assert hints.shared_zeros == frozenset()


def test_without_poolings_there_is_nothing_to_share():
    step = traced(lambda x: jax.grad(lambda x: jax.nn.relu(x).sum())(x), jnp.ones(8))
    assert shared_zeros(step.program) == frozenset()


def test_fenced_zeros_change_no_result():
    args = pooled_arguments()
    step = as_on_a_gpu(args)
    program = planned(step, "gpu")
    fences = [e for e in program.eqns if e.primitive.name == "coop_fence"]
    scalars = [v for e in fences for v in e.outvars if not v.aval.shape]
    # One of each type for every segment, however many equations use it.
    assert len(fences) // 2 < len(scalars) <= 2 * len(fences)
    assert_trees_equal(run(program, args), run(step.program, args))


@NEEDS_CUDA
def test_xla_keeps_no_array_of_zeros():
    """They would be more than a tenth of what such a net then needs on an H200."""
    shapes = jax.eval_shape(lambda: pooled_arguments(batch=32, image=128, channels=64))
    placed = absent_devices.placed(shapes, absent_devices.named_device("h200"))
    step = traced(pooled_step, *placed, donate_argnums=0)
    figures = [
        step.compile(planned(step, platform)).memory_analysis().temp_size_in_bytes
        for platform in ("gpu", "none")
    ]
    assert figures[0] < 0.9 * figures[1]
