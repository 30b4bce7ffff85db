"""The front door: called like `jax.jit`, with a budget."""

import concurrent.futures
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import (
    QUICK,
    assert_trees_equal,
    copied,
    largest_difference,
    mlp_arguments,
    mlp_step,
)

from coop_jax import InfeasibleBudgetError, PlanOptions, remat_train_step
from coop_jax.xla.memory_figures import memory_figures

# Where a step is called in one way or another, any planner will do.
FAST = "lookahead"


@pytest.fixture(scope="module")
def arguments():
    return mlp_arguments()


@pytest.fixture(scope="module")
def planned():
    return remat_train_step(mlp_step, budget="60%", planner=QUICK)


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def test_called_like_a_jitted_function(arguments, planned):
    assert largest_difference(planned(*arguments), jax.jit(mlp_step)(*arguments)) < 1e-6
    assert planned.__name__ == "mlp_step"
    assert planned.__wrapped__ is mlp_step


def test_plan_holds_the_budget(arguments, planned):
    plan = planned.plan(*arguments)
    assert plan.measured_bytes <= plan.budget_bytes == int(0.6 * plan.unmodified_bytes)
    assert plan.recomputed_flops > 0
    assert plan.total_flops > plan.recomputed_flops
    assert plan.compute_overhead > 1
    assert plan.num_fences >= 1
    compiled = planned.lower(*arguments).compile()
    assert memory_figures(compiled).total_bytes == plan.measured_bytes
    with pytest.raises(AttributeError):
        plan.budget_bytes = 1


def test_unmodified_bytes_are_those_of_the_step_as_written(arguments, planned):
    compiled = jax.jit(mlp_step).lower(*arguments).compile()
    figures = memory_figures(compiled)
    assert planned.plan(*arguments).unmodified_bytes == figures.total_bytes


def test_shapes_are_enough_to_plan_and_serve_the_call(arguments):
    step = remat_train_step(mlp_step, budget="60%", planner=FAST)
    plan = step.plan(*shapes(arguments))
    step(*arguments)
    assert step.plan(*arguments) is plan


def test_as_a_decorator(arguments):
    @remat_train_step(budget="60%", planner=FAST, donate_argnums=(0,))
    def step(weights, x):
        return mlp_step(weights, x)

    weights = copied(arguments[0])
    new_weights, _ = step(weights, arguments[1])
    assert weights[0].is_deleted()
    assert not new_weights[0].is_deleted()


def test_a_jitted_step_keeps_its_donation(arguments):
    step = remat_train_step(jax.jit(mlp_step, donate_argnums=0), budget="60%", planner=FAST)
    weights = copied(arguments[0])
    step(weights, arguments[1])
    assert weights[0].is_deleted()


def test_a_jitted_step_keeps_its_static_arguments(arguments):
    jitted = jax.jit(
        lambda n, w, x: jax.tree.map(lambda y: y * n, mlp_step(w, x)), static_argnums=0
    )
    step = remat_train_step(jitted, budget="60%", planner=FAST)
    assert not step.plan(3, *arguments).is_unmodified
    assert largest_difference(step(3, *arguments), jitted(3, *arguments)) < 1e-6


def test_a_step_that_fits_is_left_alone(arguments):
    step = remat_train_step(mlp_step, budget="1GiB")
    plan = step.plan(*arguments)
    assert plan.is_unmodified
    assert plan.measured_bytes == plan.unmodified_bytes
    assert "fits as written" in str(plan)
    assert_trees_equal(step(*arguments), jax.jit(mlp_step)(*arguments))


def test_static_arguments_by_position_and_by_name(arguments):
    def step(weights, x, scale, mode="sum"):
        new, value = mlp_step(weights, x)
        return new, value * scale if mode == "scaled" else value

    by_number = remat_train_step(step, budget="60%", planner=FAST, static_argnums=(2, 3))
    by_name = remat_train_step(
        step, budget="60%", planner=FAST, static_argnames=("scale", "mode")
    )
    value = float(mlp_step(*arguments)[1])
    # Each in the other's way: by name what is static by position, and by position.
    scaled = by_number(*arguments, 3.0, mode="scaled")[1]
    assert float(scaled) == pytest.approx(3 * value, rel=1e-5)
    assert float(by_name(*arguments, 3.0, "sum")[1]) == pytest.approx(value, rel=1e-5)
    with pytest.raises(ValueError, match="Non-hashable static arguments"):  # JAX's own
        by_number(*arguments, [1], "sum")


def test_keyword_arguments_and_pytrees(arguments):
    def step(state, *, batch):
        new, value = mlp_step(state["weights"], batch["x"])
        return {"weights": new, "count": state["count"] + 1}, (value, None)

    planned = remat_train_step(step, budget="60%", planner=FAST, donate_argnames="state")
    state = {"weights": copied(arguments[0]), "count": jnp.int32(4)}
    new, (value, nothing) = planned(state=state, batch={"x": arguments[1]})
    assert int(new["count"]) == 5
    assert nothing is None
    assert float(value) == pytest.approx(float(mlp_step(*arguments)[1]), rel=1e-5)


def test_new_shapes_and_types_are_planned_afresh(arguments):
    step = remat_train_step(mlp_step, budget="70%", planner=FAST)
    first = step.plan(*arguments)
    other = step.plan(*mlp_arguments(batch=256))
    half = step.plan(*mlp_arguments(dtype="bfloat16"))
    assert len({id(first), id(other), id(half)}) == 3
    assert other.unmodified_bytes < first.unmodified_bytes
    assert "3 planned" in repr(step)


def test_numpy_and_python_arguments():
    def step(weights, x, rate):
        new, value = mlp_step(weights, x)
        return new, value * rate

    weights, x = jax.tree.map(np.asarray, mlp_arguments())
    planned = remat_train_step(step, budget="60%", planner=FAST)
    assert float(planned(weights, x, 2.0)[1]) == pytest.approx(
        2 * float(planned(weights, x, 1.0)[1])
    )
    assert "1 planned" in repr(planned)


def test_under_an_outer_jit_the_step_is_rewritten(arguments):
    step = remat_train_step(mlp_step, budget="85%", planner=FAST)
    outer = jax.jit(lambda w, x: step(w, x))
    text = outer.lower(*arguments).as_text()
    assert "coop_fence" in text
    assert largest_difference(outer(*arguments), mlp_step(*arguments)) < 1e-6


def test_under_vmap_and_grad(arguments):
    weights, x = arguments
    step = remat_train_step(mlp_step, budget="85%", planner=FAST)
    batched = jax.vmap(step, in_axes=(None, 0))(weights, x.reshape(2, 256, 64))
    expected = jax.vmap(mlp_step, in_axes=(None, 0))(weights, x.reshape(2, 256, 64))
    assert largest_difference(batched, expected) < 1e-6
    through = jax.grad(lambda x: step(weights, x)[1])(x)
    assert (
        largest_difference(through, jax.grad(lambda x: mlp_step(weights, x)[1])(x)) < 1e-6
    )


def test_called_from_threads(arguments):
    step = remat_train_step(mlp_step, budget="60%", planner=FAST)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: step(*arguments), range(16)))
    assert "1 planned" in repr(step)
    for result in results[1:]:
        assert_trees_equal(result, results[0])


@pytest.mark.slow
def test_same_plan_twice(arguments):
    first, second = (
        remat_train_step(mlp_step, budget="60%", planner=QUICK).plan(*arguments)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first.schedule.steps, second.schedule.steps)
    assert first.measured_bytes == second.measured_bytes


@pytest.mark.parametrize("planner", ["coop", "dtr", "dte", "lookahead"])
def test_every_planner_holds_the_budget(arguments, planner):
    plan = remat_train_step(mlp_step, budget="70%", planner=planner).plan(*arguments)
    assert plan.measured_bytes <= plan.budget_bytes


@pytest.mark.parametrize("switch", ["sliding_window", "partition", "recomputable_in_place"])
def test_each_mechanism_can_be_switched_off(arguments, switch):
    options = PlanOptions(policy="coop", **{switch: False})
    plan = remat_train_step(mlp_step, budget="70%", planner=options).plan(*arguments)
    assert plan.measured_bytes <= plan.budget_bytes


def test_infeasible_budget_names_one_that_works(arguments):
    options = {"planner": FAST, "donate_argnums": 0}
    step = remat_train_step(mlp_step, budget=100_000, **options)
    with pytest.raises(
        InfeasibleBudgetError,
        match=r"`remat_train_step\(budget=\.\.\.\)` must be at least \d+ bytes .*"
        r"forbids less is `\w+` at .*steps\.py:\d+.*Got 100000 bytes.*Raise the budget",
    ) as caught:
        step(*arguments)
    assert caught.value.budget_bytes == 100_000
    smallest = caught.value.smallest_bytes
    plan = remat_train_step(mlp_step, budget=smallest, **options).plan(*arguments)
    assert plan.measured_bytes <= smallest


def test_infeasible_under_an_outer_jit(arguments):
    step = remat_train_step(mlp_step, budget=100_000)
    with pytest.raises(InfeasibleBudgetError, match="by prediction"):
        jax.jit(step)(*arguments)


def test_verbose_tells_on_stderr(arguments, capfd):
    remat_train_step(mlp_step, budget="60%", planner=FAST, verbose=True).plan(*arguments)
    log = capfd.readouterr().err
    assert "[coop_jax] unmodified step: " in log
    assert "compilation 1: predicted" in log
    assert "recomputed" in log


def test_donation_by_method_and_partial(arguments):
    class Trainer:
        @remat_train_step(budget="60%", planner=FAST, static_argnums=0)
        def step(self, weights, x):
            return mlp_step(weights, x)

    trainer = Trainer()
    assert largest_difference(trainer.step(*arguments), mlp_step(*arguments)) < 1e-6
    # Its methods are given the object, as those of `jax.jit` are.
    assert trainer.step.plan(trainer, *arguments) is Trainer.step.plan(trainer, *arguments)
    partial = remat_train_step(
        functools.partial(mlp_step, arguments[0]), budget="80%", planner=FAST
    )
    assert largest_difference(partial(arguments[1]), mlp_step(*arguments)) < 1e-6


def test_nothing_is_printed_at_exit():
    """JAX's caches hold the trainer, and the trainer the plan, to the very end."""
    code = """
import jax, jax.numpy as jnp
from coop_jax import remat_train_step

def loss(weights, x):
    for w in weights:
        x = x + jnp.tanh(jnp.tanh(x @ w) * 1.1)
    return jnp.mean(x**2)

def trained():
    class Trainer:
        @remat_train_step(budget="80%", planner="lookahead", static_argnums=0)
        def step(self, weights, x):
            return jax.grad(loss)(weights, x)

    trainer, args = Trainer(), ([jnp.eye(16)] * 6, jnp.ones((1024, 16)))
    trainer.step(*args)
    assert not trainer.step.plan(trainer, *args).is_unmodified

trained()
"""
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_x64_is_another_plan():
    step = remat_train_step(mlp_step, budget="70%", planner=FAST)
    step.plan(*mlp_arguments())
    with jax.enable_x64(True):
        plan = step.plan(*mlp_arguments(dtype="float64"))
    assert plan.measured_bytes <= plan.budget_bytes
    assert "2 planned" in repr(step)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": "12 parsecs"}, ValueError, r"must look like.*Got '12 parsecs'"),
        ({"budget": "0%"}, ValueError, r"must be positive.*Got '0%'"),
        ({"budget": "120%"}, ValueError, r"at most 100%.*Got '120%'"),
        ({"budget": -1}, ValueError, r"must be positive\. Got -1 bytes"),
        ({"budget": 1.5}, TypeError, r"number of bytes \(int\) or a string.*Got 1\.5"),
        ({"budget": True}, TypeError, r"Got True of type bool"),
        (
            {"budget": "1GiB", "planner": "best"},
            ValueError,
            r"one of search, lookahead, coop, dtr, dte.*'best'",
        ),
        ({"fn": 3, "budget": "1GiB"}, TypeError, r"must be given a callable\. Got 3"),
    ],
)
def test_malformed_arguments_are_refused_at_once(options, error, text):
    with pytest.raises(error, match=text):
        remat_train_step(**{"fn": mlp_step, **options})


def test_device_budget_needs_a_device_that_reports_a_limit(arguments):
    step = remat_train_step(mlp_step, budget="device")
    with pytest.raises(ValueError, match=r"needs a device that reports its memory limit"):
        step.plan(*arguments)
