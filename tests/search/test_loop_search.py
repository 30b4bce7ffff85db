"""Steps with loops under a budget: kept by XLA's figure, with the same results."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scanned_steps import STEPS, descent, layer, normal, scanned, weights
from steps import LITTLE_CODE, QUICK, traced

import coop_jax
from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import fit_step
from coop_jax.searches import loop_search_of
from coop_jax.xla.memory_figures import memory_figures

LONG = 12


def jitted(step):
    return jax.jit(step, compiler_options=LITTLE_CODE)


def bytes_of(step, args):
    return memory_figures(jitted(step).lower(*args).compile()).total_bytes


def wide(wrap=lambda body: body):
    """Activations outweigh the weights."""

    def loss(w, x):
        body = wrap(lambda x, w: (layer(x, w), None))
        return jnp.mean(jax.lax.scan(body, x, w)[0] ** 2)

    return descent(loss, weights(LONG), normal(512, 16))


def smallest_of(step, args, planner="search"):
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(
            step, budget=1, planner=planner, compiler_options=LITTLE_CODE
        ).plan(*args)
    return caught.value.smallest_bytes


def largest_difference(one, other):
    def distance(a, b):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max()

    return max(jax.tree.leaves(jax.tree.map(distance, one, other)), default=0.0)


OFTEN = ("recurrent",)  # The others take minutes together.
BY_HAND = (
    *("two loops", "stacked keys", "recurrent layers", "accumulated", "checkpoint"),
    *("second derivative", "results read", "unrolled", "nested checkpoints"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *((pytest.mark.slow,) if name not in OFTEN else ()),
                *((pytest.mark.hand,) if name in BY_HAND else ()),
            ],
        )
        for name in STEPS
        if STEPS[name][1]
    ],
)
def test_loops_of_every_kind_keep_budgets_with_the_same_results(name):
    step, args = STEPS[name][0]()
    asked = traced(step, *args, compiler_options=LITTLE_CODE)
    unmodified = compile_both(asked)
    expected, as_written = unmodified.compiled(*args), unmodified.total_bytes

    def fitted(budget):
        return fit_step(asked, budget, QUICK, lambda line: None, unmodified)

    with pytest.raises(InfeasibleBudgetError) as caught:
        fitted(1)
    smallest = caught.value.smallest_bytes
    assert smallest <= as_written
    for budget in {smallest, (smallest + as_written) // 2}:
        planned = fitted(budget)
        assert planned.plan.measured_bytes <= budget
        assert planned.plan.is_unmodified == (budget >= as_written)
        # Rounding: the same operations, fused otherwise.
        assert largest_difference(planned.compiled(*args), expected) < 1e-5


@pytest.mark.slow
def test_budgets_from_all_to_the_smallest_are_kept_and_less_room_takes_no_less_time(
    monkeypatch,
):
    bodies = set()
    read_once = TracedStep.read_once

    def recorded(self, lowered, compile_it):
        bodies.add(lowered.as_text())
        return read_once(self, lowered, compile_it)

    monkeypatch.setattr(TracedStep, "read_once", recorded)
    step, args = wide()
    smallest, as_written = smallest_of(step, args), bytes_of(step, args)
    overhead = 0.0
    for budget in np.linspace(0.95 * as_written, smallest, 4, dtype=int):
        bodies.clear()
        plan = remat_train_step(step, budget=int(budget)).plan(*args)
        assert plan.measured_bytes <= budget
        assert plan.compute_overhead >= overhead
        # The last may have been compiled to be read before, and so may the lines around it
        # and around the loops without groups.
        assert plan.num_compilations - len(bodies) <= 7 + 3
        overhead = plan.compute_overhead


@pytest.mark.slow
def test_less_is_needed_than_with_every_policy_for_the_body():
    step, args = wide()
    smallest = smallest_of(step, args, QUICK)
    policies = jax.checkpoint_policies
    for policy in (policies.nothing_saveable, policies.dots_saveable):
        by_hand, _ = wide(lambda body, p=policy: jax.checkpoint(body, policy=p))
        assert smallest <= bytes_of(by_hand, args)


@pytest.mark.slow
@pytest.mark.hand
def test_training_goes_the_same_way():
    step, (w, x) = wide()
    budget = smallest_of(step, (w, x), QUICK) * 11 // 10
    planned = remat_train_step(
        step,
        budget=budget,
        planner=QUICK,
        donate_argnums=0,
        compiler_options=LITTLE_CODE,
    )
    as_it_is = jitted(step)
    states = [jax.tree.map(jnp.copy, w), jax.tree.map(jnp.copy, w)]
    for _ in range(20):
        states[0], one = as_it_is(states[0], x)
        states[1], other = planned(states[1], x)
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert largest_difference(*states) < 1e-5


@pytest.mark.slow
def test_the_report_says_what_iterations_keep_and_what_runs_again():
    step, args = wide()
    smallest, as_written = smallest_of(step, args, QUICK), bytes_of(step, args)
    budget = (smallest + as_written) // 2
    text = str(remat_train_step(step, budget=budget, planner=QUICK).plan(*args))
    assert re.search(rf"loop of {LONG} iterations at \S+\.py:\d+ \(", text), text
    assert re.search(r"iterations \d+-\d+ keep [\d.]+ [KM]iB each", text), text
    assert re.search(r"float32\[512,\d+\] (of \w+ at|that the iteration)", text), text
    assert re.search(r"\d+ x \w+ at scanned_steps\.py:\d+ \(layer\)", text), text


def test_groups_are_named_where_only_what_is_carried_into_them_is_kept():
    step, args = STEPS["recurrent"][0]()
    budget = smallest_of(step, args, QUICK)
    text = str(remat_train_step(step, budget=budget, planner=QUICK).plan(*args))
    assert re.search(r"while their group of \d+ runs again", text), text


@pytest.mark.parametrize("planner", ["dtr", "dte", "coop", "lookahead", "search"])
def test_the_papers_planners_know_no_loops(planner):
    step, args = scanned()
    traced = TracedStep.trace(step, {}, args, {})
    search = loop_search_of(traced, planner, bytes_of(step, args), lambda line: None)
    assert (search is not None) == (planner == "search")


@pytest.mark.slow
@pytest.mark.hand
def test_the_step_around_loops_is_planned_where_they_do_not_suffice():
    """A loop that saves little, and layers beside it."""

    def loss(params, x):
        inside, around = params
        for w in jnp.unstack(around):
            x = x + jnp.sin(jnp.tanh(x @ w) @ w.T)
        x = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, inside)[0]
        return jnp.mean(x**2)

    step, args = descent(loss, (normal(3, 16, 16), normal(8, 16, 16)), normal(1024, 16))
    smallest, as_written = smallest_of(step, args), bytes_of(step, args)
    plan = coop_jax.remat_train_step(step, budget=(smallest * 3 + as_written) // 4)
    shown = plan.plan(*args)
    assert shown.loops
    assert shown.schedule is not None
    assert shown.recomputations
    assert largest_difference(plan(*args), jax.jit(step)(*args)) < 1e-5
