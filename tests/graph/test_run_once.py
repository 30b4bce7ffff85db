"""What is made of a result that cannot be made again can be, while that result is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from steps import QUICK, compiled_graph, copied, traced

from coop_jax import remat_train_step
from coop_jax.graph.run_once import keeping_what_runs_once
from coop_jax.plan.planner import planner_options, smallest_pool

ROWS, WIDTH = 512, 64
WEIGHTS = [0.1 * jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) for i in range(6)]
NUMBERS_READ: list[int] = []
OPTIONS = planner_options(QUICK, 64)


def read_pixels(number):
    NUMBERS_READ.append(int(number))
    return np.random.default_rng(int(number)).integers(0, 255, (ROWS, WIDTH), np.uint8)


def step_on(batch_of):
    """Descent on layers over a batch that the step itself gets, small and in integers."""

    def step(weights, number):
        batch = batch_of(number)

        def loss(weights):
            x = batch.astype(jnp.float32) / 255
            for w in weights:
                x = x + jax.nn.gelu(x @ w)
            return jnp.mean(x**2)

        value, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step


def read(number):
    return io_callback(read_pixels, jax.ShapeDtypeStruct((ROWS, WIDTH), np.uint8), number)


def generated(number):
    return jax.random.randint(jax.random.key(number), (ROWS, WIDTH), 0, 255, jnp.uint8)


def test_kept_results_of_what_runs_once_leave_a_way_back_to_what_is_made_of_them():
    graph = compiled_graph(traced(step_on(read), WEIGHTS, 1))
    kept = keeping_what_runs_once(graph)
    [number] = np.flatnonzero(
        kept.core.arrays()["tensor_output"] != graph.core.arrays()["tensor_output"]
    )
    assert graph.in_pool_bytes[number] == ROWS * WIDTH  # One byte each.
    fewest, most = (smallest_pool(g, OPTIONS).pool_bytes for g in (kept, graph))
    assert fewest < 0.7 * most


def test_a_graph_without_such_results_is_the_same():
    graph = compiled_graph(traced(step_on(generated), WEIGHTS, 1))
    assert keeping_what_runs_once(graph) is graph


def test_a_result_that_is_read_as_long_as_what_is_made_of_it_is_not_kept():
    def step(weights, number):
        return jnp.tanh(weights[0] @ weights[1]) @ weights[2], read(number) // 2

    graph = compiled_graph(traced(step, WEIGHTS, 1))
    assert keeping_what_runs_once(graph) is graph


@pytest.mark.parametrize("batch_of", [read, generated])
def test_a_step_that_reads_its_batch_fits_as_one_that_makes_it(batch_of):
    step = step_on(batch_of)
    planned = remat_train_step(step, budget="60%", donate_argnums=0, planner=QUICK)
    plan = planned.plan(WEIGHTS, 1)
    assert plan.measured_bytes <= plan.budget_bytes
    NUMBERS_READ.clear()
    got = planned(copied(WEIGHTS), 1)
    jax.effects_barrier()
    assert NUMBERS_READ == ([1] if batch_of is read else [])
    for one, other in zip(
        jax.tree.leaves(got), jax.tree.leaves(jax.jit(step)(WEIGHTS, 1)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
