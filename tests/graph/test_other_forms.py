"""A value that XLA keeps in a form of another size is that value, not scratch."""

import pytest
from graph.volume_steps import volume_shapes, volume_step
from steps import NEEDS_TPU

import coop_jax
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.plan.planner import unconstrained
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import problem_of
from coop_jax.xla.absent_devices import named_device, placed

DEVICE = "tpu v5e"


@NEEDS_TPU
@pytest.mark.parametrize(("side", "channels", "layers"), [(64, 32, 3), (64, 16, 6)])
def test_the_bytes_of_a_step_as_written_are_those_of_xla(side, channels, layers):
    """Counted as scratch, they were less than half."""
    shapes = placed(volume_shapes(side, channels, layers), named_device(DEVICE))
    traced = TracedStep.trace(volume_step, {}, shapes, {})
    both = compile_both(traced)
    problem = problem_of(traced, "search", lambda line: None, both.tagged, XLA_PLACES)
    graph = problem.graphs[0]
    expected = problem.planned_bytes(graph, unconstrained(graph, problem.options))
    assert both.total_bytes == pytest.approx(expected, rel=0.2)


@NEEDS_TPU
def test_budgets_of_a_convolutional_step_are_used():
    """The bytes of plans follow their budgets, and more room is not slower."""
    shapes = placed(volume_shapes(), named_device(DEVICE))
    plans = [
        coop_jax.remat_train_step(volume_step, budget=budget).plan(*shapes)
        for budget in ("85%", "70%")
    ]
    for plan in plans:
        assert plan.measured_bytes <= plan.budget_bytes
    overheads = [plan.compute_overhead for plan in plans]
    assert overheads == sorted(overheads)
