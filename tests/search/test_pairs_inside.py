"""A loop that is run again in the body of another makes a pair with its gradient there."""

import re

import jax
import numpy as np
import pytest
from scanned_steps import stacked_recurrent

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.targets import named
from coop_jax.xla.memory_figures import memory_figures

SIZES = ((3, 48), pytest.param((5, 96), marks=pytest.mark.slow))


def bytes_of(step, args):
    return memory_figures(jax.jit(step).lower(*args).compile()).total_bytes


def smallest_outside(step, args):
    """The fewest bytes with plans of the pairs of the step alone."""
    traced = TracedStep.trace(step, {}, args, {})
    program = with_broadcasts_inside(traced.program)
    menu = menu_of(program, named("cpu"))
    ends = [with_planned_pairs(program, menu.saving(high)) for _, high in menu.stretches]
    return min(memory_figures(traced.compile(end)).total_bytes for end in ends)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.slow
def test_layers_over_time_fit_as_with_checkpoints_of_both_bodies(size, tmp_path):
    layers, length = size
    step, args = stacked_recurrent(*size)
    budget = bytes_of(stacked_recurrent(*size, wrap=jax.checkpoint)[0], args)
    assert budget < 0.95 * smallest_outside(step, args)
    planned = remat_train_step(step, budget=budget)
    plan = planned.plan(*args)
    assert plan.measured_bytes <= budget
    results = [jax.tree.leaves(fn(*args)) for fn in (planned, jax.jit(step))]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

    runs = [(loop.length, loop.num_runs) for loop in plan.loops if loop.parts]
    assert runs == [(layers, 1), (length, layers)]
    where = r"at scanned_steps\.py:\d+ \(stacked_recurrent\S+\)"
    assert re.search(rf"loop of {length} iterations {where}, run {layers} times", str(plan))
    assert re.search(rf"loop of {layers} iterations {where}\n", str(plan))

    plan.save(tmp_path / "plan.json")
    again = remat_train_step(step, budget=budget, plan=tmp_path / "plan.json").plan(*args)
    assert again.num_compilations == 1
    assert again.loops == plan.loops
    assert again.measured_bytes == plan.measured_bytes


@pytest.mark.slow
@pytest.mark.parametrize("size", [(3, 48), (5, 96)])
def test_the_smallest_budget_is_below_that_without_pairs_inside(size):
    step, args = stacked_recurrent(*size)
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1).plan(*args)
    smallest = caught.value.smallest_bytes
    assert smallest <= 0.8 * smallest_outside(step, args)
    assert remat_train_step(step, budget=smallest).plan(*args).measured_bytes <= smallest


def test_budgets_that_need_no_pair_inside_plan_none():
    step, args = stacked_recurrent(3, 48)
    plan = remat_train_step(step, budget="80%").plan(*args)
    assert [loop.num_runs for loop in plan.loops] == [1]
