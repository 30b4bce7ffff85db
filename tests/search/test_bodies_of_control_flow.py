"""Training steps in branches and in loops that end when they have done enough."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scanned_steps import normal
from steps import QUICK

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, BATCH = 5, 32, 512


def layer(x, w):
    return x + jnp.tanh(jnp.tanh(x @ w) * 1.1)


def unrolled(weights, x):
    return jnp.mean(functools.reduce(layer, jnp.unstack(weights), x) ** 2)


def scanned(weights, x):
    return jnp.mean(jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0] ** 2)


def sgd(weights, x, loss=unrolled):
    value, grads = jax.value_and_grad(loss)(weights, x)
    return weights - 0.1 * grads, value


def skipped(weights, x, loss=unrolled):
    """A step that is left out where its data are bad."""
    return jax.lax.cond(
        jnp.isfinite(x).all(),
        functools.partial(sgd, loss=loss),
        lambda weights, x: (weights, jnp.inf),
        *(weights, x),
    )


def switched(weights, x):
    """Branches that need more and less."""

    def on_part(size):
        return lambda weights, x: sgd(weights, x[: int(size * BATCH)])

    return jax.lax.switch(
        jnp.int32(x[0, 0] > -9), [on_part(0.9), sgd, on_part(0.2)], weights, x
    )


def until_done(weights, x):
    """As many steps as it takes."""

    def body(state):
        weights, _, count = state
        return *sgd(weights, x), count + 1

    start = weights, jnp.float32(jnp.inf), 0
    return jax.lax.while_loop(lambda s: (s[1] > 1e-6) & (s[2] < 3), body, start)


def in_both(weights, x):
    def body(state):
        weights, count = state
        return skipped(weights, x)[0], count + 1

    return jax.lax.while_loop(lambda s: s[1] < 2, body, (weights, 0))


def line_search(weights, x):
    optimizer = optax.lbfgs(memory_size=2)
    loss = functools.partial(unrolled, x=x)
    value, grads = jax.value_and_grad(loss)(weights)
    updates, _ = optimizer.update(
        *(grads, optimizer.init(weights), weights),
        value=value,
        grad=grads,
        value_fn=loss,
    )
    return optax.apply_updates(weights, updates), value


def arguments():
    return 0.1 * normal(LAYERS, WIDTH, WIDTH), normal(BATCH, WIDTH)


def bytes_of(step):
    return memory_figures(jax.jit(step).lower(*arguments()).compile()).total_bytes


@functools.cache
def planned_as(step):
    return remat_train_step(step, budget="80%", planner=QUICK)


def check_results(planned, step):
    for got, wanted in zip(
        jax.tree.leaves(planned(*arguments())),
        jax.tree.leaves(jax.jit(step)(*arguments())),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "kinds"),
    [
        (skipped, {"cond"}),
        (until_done, {"while_loop"}),
        pytest.param(switched, {"cond"}, marks=pytest.mark.slow),
        pytest.param(in_both, {"cond"}, marks=pytest.mark.slow),
        pytest.param(line_search, {"cond"}, marks=[pytest.mark.slow, pytest.mark.hand]),
    ],
)
def test_their_bodies_are_planned(step, kinds, tmp_path):
    planned = planned_as(step)
    plan = planned.plan(*arguments())
    assert plan.measured_bytes <= 0.8 * bytes_of(step)
    assert {loop.kind for loop in plan.loops if loop.live_bytes} == kinds
    assert plan.recomputed_flops > 0
    check_results(planned, step)
    plan.save(tmp_path / "plan.json")
    again = remat_train_step(
        step, budget="80%", planner=QUICK, plan=tmp_path / "plan.json"
    ).plan(*arguments())
    assert again.measured_bytes == plan.measured_bytes
    assert again.loops == plan.loops


def test_the_report_names_the_branch():
    plan = planned_as(skipped).plan(*arguments())
    (loop,) = plan.loops
    assert (loop.kind, loop.length, loop.branch) == ("cond", None, 1)
    text = str(plan)
    assert "branch 1 of the cond at test_bodies_of_control_flow.py" in text
    assert "    it has " in text


def test_the_report_names_a_while_loop():
    plan = planned_as(until_done).plan(*arguments())
    (loop,) = plan.loops
    assert (loop.kind, loop.length, loop.branch) == ("while_loop", None, None)
    text = str(plan)
    assert "  while_loop at test_bodies_of_control_flow.py" in text
    assert "    an iteration has " in text


def test_loops_in_a_branch_make_pairs():
    step = functools.partial(skipped, loss=scanned)
    planned = remat_train_step(step, budget="70%", planner=QUICK)
    plan = planned.plan(*arguments())
    assert plan.measured_bytes <= 0.7 * bytes_of(step)
    assert any(loop.parts for loop in plan.loops)
    check_results(planned, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", [skipped, until_done, in_both])
def test_the_smallest_budget_that_is_named_works(step):
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1, planner=QUICK).plan(*arguments())
    smallest = caught.value.smallest_bytes
    assert smallest < 0.75 * bytes_of(step)
    plan = remat_train_step(step, budget=smallest, planner=QUICK).plan(*arguments())
    assert plan.measured_bytes <= smallest
