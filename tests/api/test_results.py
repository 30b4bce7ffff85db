"""Planned steps give the unmodified step's results over 20 training steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.training import convnet_problem, mixer_problem, transformer_problem
from steps import (
    LITTLE_CODE,
    QUICK,
    assert_trees_equal,
    copied,
    mlp_arguments,
    mlp_step,
    names_and_types,
)

import coop_jax

_STEPS = 20
# Recomputation gives the same values up to rounding, as XLA fuses it differently.
# Training then amplifies a rounding error. So the yardstick is the unmodified step
# itself, started from parameters that differ by one rounding error of the dtype it
# computes in: the planned step may differ by as much as a few such runs.
_ROUNDING_ERRORS = 8

PROBLEMS = {
    "transformer": lambda dtype: transformer_problem(
        num_layers=2,
        width=64,
        num_heads=2,
        batch_size=16,
        sequence_length=64,
        dropout_rate=0.1,
        dtype=dtype,
    ),
    "convnet": lambda dtype: convnet_problem(
        stage_sizes=(2, 2), width=16, image_size=16, batch_size=32, dtype=dtype
    ),
    "mixer": lambda dtype: mixer_problem(
        num_layers=3, width=64, batch_size=32, dtype=dtype
    ),
}


def train(step, problem, state):
    losses = []
    for number in range(_STEPS):
        state, loss = step(state, problem.batch, jax.random.fold_in(problem.key, number))
        losses.append(float(loss))
    return np.array(losses)


def nudged(state, dtype):
    scale = 1 + float(jnp.finfo(dtype).eps)
    return state._replace(params=jax.tree.map(lambda p: p * scale, state.params))


# Half a minute each; `tests/search/test_loop_search.py` trains a small step.
@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), names_and_types(PROBLEMS))
def test_losses_over_20_steps(name, dtype):
    problem = PROBLEMS[name](jnp.dtype(dtype))
    options = {"donate_argnums": 0, "compiler_options": LITTLE_CODE}
    unmodified = jax.jit(problem.train_step, **options)
    planned = coop_jax.remat_train_step(
        problem.train_step, budget="60%", planner=QUICK, **options
    )
    plan = planned.plan(problem.state, problem.batch, problem.key)
    assert plan.measured_bytes <= plan.budget_bytes
    assert plan.recomputations
    expected = train(unmodified, problem, problem.fresh_state())
    start = nudged(problem.fresh_state(), dtype)
    rounding = np.abs(train(unmodified, problem, start) - expected).max()
    actual = train(planned, problem, problem.fresh_state())
    assert expected[-1] < expected[0]
    assert np.abs(actual - expected).max() <= _ROUNDING_ERRORS * rounding


# Unoptimized code has other roundings of `tanh` by the loop that it is fused into.
@pytest.mark.usefixtures("optimized_code")
def test_bitwise_where_the_order_of_operations_is_kept():
    weights, x = mlp_arguments()
    step = coop_jax.remat_train_step(
        mlp_step, budget="60%", planner=QUICK, donate_argnums=0
    )
    assert step.plan(weights, x).recomputed_flops > 0
    unmodified = jax.jit(mlp_step, donate_argnums=0)
    expected, actual = copied(weights), copied(weights)
    for _ in range(_STEPS):
        expected, expected_loss = unmodified(expected, x)
        actual, actual_loss = step(actual, x)
        assert_trees_equal((actual, actual_loss), (expected, expected_loss))
