"""Steps with several loops, whose stacks XLA:CPU would make at the beginning."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from scanned_steps import descent, normal, scanned
from steps import (
    LITTLE_CODE,
    QUICK,
    assert_trees_equal,
    largest_difference,
    traced,
)

from coop_jax import InfeasibleBudgetError, backends, remat_train_step
from coop_jax.backends.cpu.early_stacks import has_early_stacks
from coop_jax.backends.cpu.order_for_memory import ORDER_FOR_MEMORY

WIDTH, TIMES, BATCH = 16, 64, 16


def recurrent_layers(layers=3):
    """Layers over time, one after the other, in both directions."""

    def cell(w, state, x):
        state = jnp.tanh(x @ w["in"] + jnp.tanh(state @ w["again"]))
        return state, state

    def loss(params, x):
        for both in params:
            outs = [
                lax.scan(lambda s, x, w=w: cell(w, s, x), x[0] * 0, x, reverse=reverse)[1]
                for w, reverse in zip(both, (False, True), strict=True)
            ]
            x = outs[0] + outs[1]
        return jnp.mean(x**2)

    def direction(seed):
        weights = normal(WIDTH, WIDTH, seed=seed), normal(WIDTH, WIDTH, seed=seed + 1)
        return dict(zip(("in", "again"), weights, strict=True))

    params = [(direction(4 * i), direction(4 * i + 2)) for i in range(layers)]
    return descent(loss, params, normal(TIMES, BATCH, WIDTH))


def in_a_line():
    def loss(w, x):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    return descent(loss, normal(WIDTH, WIDTH), normal(BATCH, WIDTH))


@pytest.mark.parametrize(
    ("make", "is_found"),
    [(recurrent_layers, True), (scanned, False), (in_a_line, False)],
)
def test_steps_whose_loops_stack_much_beside_one_are_found(make, is_found):
    step, args = make()
    asked = traced(step, *args)
    assert has_early_stacks(asked.program) == is_found
    assert dict(asked.options_of_plans) == (dict(ORDER_FOR_MEMORY) if is_found else {})


def planned(budget):
    step, args = recurrent_layers()
    step = remat_train_step(
        step, budget=budget, planner=QUICK, compiler_options=LITTLE_CODE
    )
    return step.plan(*args), step(*args)


@pytest.fixture(scope="module")
def in_order_for_memory():
    return planned("30%")


@pytest.mark.slow
def test_budgets_are_kept_that_no_plan_keeps_otherwise(in_order_for_memory):
    plan, _ = in_order_for_memory
    assert plan.measured_bytes <= plan.budget_bytes
    with backends.registered("cpu", backends.without("cpu", "early_stacks")):
        with pytest.raises(InfeasibleBudgetError) as caught:
            planned("30%")
    assert caught.value.smallest_bytes > plan.budget_bytes


def test_results_are_those_of_the_step_as_written(in_order_for_memory):
    step, args = recurrent_layers()
    # Rounding: the same operations, fused otherwise.
    assert largest_difference(in_order_for_memory[1], jax.jit(step)(*args)) < 1e-6


def test_an_option_of_the_users_takes_precedence():
    (name,) = ORDER_FOR_MEMORY
    as_early_as_it_can = {name: "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"}
    step, args = recurrent_layers()
    step = traced(step, *args, compiler_options=as_early_as_it_can)
    options = step.plan_options(step.program)
    assert options["compiler_options"] == as_early_as_it_can


def test_a_saved_plan_is_compiled_in_the_same_order(in_order_for_memory, tmp_path):
    plan, results = in_order_for_memory
    plan.save(tmp_path / "plan.json")
    step, args = recurrent_layers()
    again = remat_train_step(
        step, budget="30%", planner=QUICK, compiler_options=LITTLE_CODE,
        plan=tmp_path / "plan.json",
    )  # fmt: skip
    assert again.plan(*args).measured_bytes == plan.measured_bytes
    assert_trees_equal(again(*args), results)
