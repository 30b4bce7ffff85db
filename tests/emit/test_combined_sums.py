"""Sums over devices, which XLA:CPU makes all at once unless a fence is between them."""

import jax
import numpy as np
import pytest
from mapped_steps import mapped_arguments, mapped_plan, mapped_step
from steps import LITTLE_CODE, QUICK

import coop_jax
from coop_jax import backends
from coop_jax.emit.combined_sums import fences_between_sums
from coop_jax.emit.hints import NO_HINTS
from coop_jax.plan.decoded import decoded
from coop_jax.search.placements import XlaPlacement
from coop_jax.trace.costs import aval_bytes
from coop_jax.xla.memory_figures import memory_figures

pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")


def sums(graph):
    return [
        number
        for number, operation in enumerate(graph.operations)
        if graph.program.eqns[operation.anchor].primitive.name.startswith("psum")
    ]


def test_values_of_a_mapped_step_are_those_of_one_device():
    """All arrays that are summed; the loss takes a unit of alignment."""
    _, graph, _ = mapped_plan()
    summed = [t for number in sums(graph) for t in graph.operations[number].outputs]
    arrays = [t for t in summed if graph.tensors[t].aval.ndim]
    assert arrays
    for tensor in arrays:
        assert graph.in_pool_bytes[tensor] == aval_bytes(graph.tensors[tensor].aval)


def test_what_sums_would_free_late_hardly_exceeds_the_plan():
    _, graph, schedule = mapped_plan()
    fences = fences_between_sums(graph, schedule)
    assert fences
    limit = schedule.statistics.max_live_bytes
    live, late, summed, number = {}, 0, set(), 0
    for step in decoded(schedule):
        if not step.runs:
            size = live.pop(step.index)
            late += size if step.index in summed else 0
            continue
        if number in fences:
            late, summed = 0, set()
        live.update((t, graph.in_pool_bytes[t]) for t, _ in step.placed)
        if step.index in sums(graph):
            assert sum(live.values()) + late <= limit * (1 + 1 / 16)
            operation = graph.operations[step.index]
            summed.update(operation.inputs, (t for t, _ in step.placed))
        number += 1


def test_the_executable_needs_about_what_the_plan_does():
    step, graph, schedule = mapped_plan()

    def needed(backend):
        realized = XlaPlacement(backend, NO_HINTS).realize(graph, schedule)
        return memory_figures(step.compile(realized.program)).temp_bytes

    on = needed(backends.named("cpu"))
    off = needed(backends.without("cpu", "combined_sums"))
    assert on <= 1.1 * schedule.statistics.max_live_bytes < off


def test_a_budget_that_all_sums_at_once_exceed_is_kept():
    step = coop_jax.remat_train_step(
        mapped_step(),
        budget="83%",
        planner=QUICK,
        donate_argnums=0,
        compiler_options=LITTLE_CODE,
    )
    wanted = jax.jit(mapped_step())(*mapped_arguments())
    found = step(*mapped_arguments())
    plan = step.plan(*mapped_arguments())
    assert plan.measured_bytes <= plan.budget_bytes
    for old, new in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-6)
