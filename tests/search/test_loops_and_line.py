"""Loops and the line around them are planned together: the cheapest of both is evicted."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scanned_steps import WIDTH, behind_a_line, descent, normal, scanned, weights
from steps import LITTLE_CODE, QUICK, traced

from coop_jax import InfeasibleBudgetError, backends, remat_train_step
from coop_jax.backends.cpu.backend import CpuBackend
from coop_jax.compile.as_written import (
    compile_both,
    compile_tagged,
    predicted_fixed_bytes,
)
from coop_jax.fitted_line import OF_UNMODIFIED
from coop_jax.pipeline import fit_step
from coop_jax.plan.planner import recomputed_quickly
from coop_jax.search import loops_and_line
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import loop_search_of, problem_of


def silent(line):
    pass


def fitted(asked, budget, unmodified):
    return fit_step(asked, budget, QUICK, silent, unmodified)


@pytest.fixture(scope="module")
def of_mixed():
    step, args = behind_a_line()
    asked = traced(step, *args, compiler_options=LITTLE_CODE)
    return asked, args, compile_both(asked)


def differ(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def test_loops_keep_what_is_cheap_where_the_line_can_be_evicted(of_mixed, monkeypatch):
    asked, args, unmodified = of_mixed
    budget = unmodified.total_bytes * 30 // 100
    together = fitted(asked, budget, unmodified)
    assert together.plan.measured_bytes <= budget
    assert together.plan.loops
    assert together.plan.schedule is not None
    # Rounding: the same operations, fused otherwise.
    expected = unmodified.compiled(*args)
    assert differ(together.compiled(*args), expected) < 1e-5

    monkeypatch.setattr(loops_and_line.LoopsAndLine, "best", lambda *_: None)
    in_turn = fitted(asked, budget, unmodified)
    assert together.plan.compute_overhead < in_turn.plan.compute_overhead
    assert together.plan.num_compilations < in_turn.plan.num_compilations


@pytest.mark.slow
@pytest.mark.hand
def test_the_smallest_bytes_that_an_error_names_are_kept(of_mixed):
    asked, _, unmodified = of_mixed
    with pytest.raises(InfeasibleBudgetError) as caught:
        fitted(asked, 1, unmodified)
    smallest = caught.value.smallest_bytes
    assert fitted(asked, smallest, unmodified).plan.measured_bytes <= smallest


def test_nothing_more_is_compiled_where_loops_alone_take_hardly_more_time(monkeypatch):
    step, args = scanned(layers=12)

    def refuse(planned):
        raise AssertionError("the line around the loops is compiled")

    def made(loops, search_of, *rest):
        return loops_and_line.LoopsAndLine(loops, refuse, *rest)

    monkeypatch.setattr("coop_jax.fit_form.LoopsAndLine", made)
    plan = remat_train_step(step, budget="75%", compiler_options=LITTLE_CODE).plan(*args)
    assert plan.loops
    assert plan.schedule is None


def test_what_is_compiled_of_both_in_vain_counts(
    of_mixed, compilations_by_xla, monkeypatch
):
    asked, _, unmodified = of_mixed
    budget = unmodified.total_bytes * 30 // 100
    num_in_vain = 0

    def forgotten(*args):
        nonlocal num_in_vain
        before = len(compilations_by_xla)
        best(*args)
        num_in_vain += len(compilations_by_xla) - before

    best = loops_and_line.LoopsAndLine.best
    monkeypatch.setattr(loops_and_line.LoopsAndLine, "best", forgotten)
    plan = fitted(asked, budget, unmodified).plan
    assert num_in_vain > 0
    # The step as written was compiled before, and counts as compiled for this plan.
    assert plan.num_compilations == len(compilations_by_xla) + OF_UNMODIFIED


def test_a_saved_plan_of_both_makes_the_same_step(of_mixed, tmp_path):
    step, args = behind_a_line()
    file = tmp_path / "plan.json"
    options = {"planner": QUICK, "compiler_options": LITTLE_CODE}
    plan = remat_train_step(step, budget="30%", **options).plan(*args)
    assert plan.loops
    assert plan.schedule is not None
    plan.save(file)
    again = remat_train_step(step, budget="30%", plan=file, **options).plan(*args)
    assert again.measured_bytes == plan.measured_bytes
    assert again.compute_overhead == plan.compute_overhead
    assert len(again.loops) == len(plan.loops)


@pytest.mark.parametrize("percent", [60, 40, 30, 20, 12])
def test_the_place_is_the_cheapest_of_all_that_work(of_mixed, percent):
    """Against every place of the path, one by one, with its seconds from the pairs."""
    asked, _, unmodified = of_mixed
    budget = unmodified.total_bytes * percent // 100
    loops = loop_search_of(asked, QUICK, unmodified.total_bytes, silent)
    fixed_bytes = predicted_fixed_bytes(asked.program)
    problems = []

    def search_of(planned):
        around = dataclasses.replace(asked, program=planned.program)
        tagged = compile_tagged(around)
        problem = problem_of(around, QUICK, silent, tagged, XLA_PLACES)
        problems.append(problem)
        return BudgetSearch(problem)

    both = loops_and_line.LoopsAndLine(loops, search_of, fixed_bytes, 1)
    chosen = both._cheapest(budget, math.inf)
    menu, problem = loops.pairs.menu, problems[0]
    room = budget - problem.fixed_bytes

    def around(saved_bytes):
        graph, pool = problem.graphs[0], room + saved_bytes
        return recomputed_quickly(graph, problem.options, pool)

    def seconds(saved_bytes):
        return sum(p.seconds for p in menu.saving(saved_bytes)) + around(saved_bytes)

    places = [place for place in menu.corner_places if place <= loops.pairs.high]
    least = min(map(seconds, places))
    # Places that save hardly more than the one before are left out.
    assert seconds(chosen) <= 1.02 * least
    if math.isinf(least):  # The loops may need less than at the first place.
        assert chosen == places[-1]
    else:  # None without groups is cheaper.
        cheaper = both._cheapest(budget, least)
        assert cheaper is None or cheaper > loops.pairs.high


def beside_a_curve():
    """A loop with a gradient in its body, beside a line that needs as much at once as the
    loop does where it keeps little."""

    def net(w, x):
        for up, down in zip(w["up"], w["down"], strict=True):
            x = jnp.tanh(jnp.tanh(x @ up) @ down)
        return x

    def loss(w, x, y):
        def body(x, _):
            out, back = jax.vjp(lambda x: net(w, x), x)
            (slope,) = back(out)
            return x + 0.1 * jnp.tanh(slope), jnp.mean(slope**2)

        x, means = lax.scan(body, x, length=12)

        def slope(y):
            return jax.jvp(lambda y: net(w, y), (y,), (jnp.ones_like(y),))[1]

        curved = jax.jvp(slope, (y,), (jnp.ones_like(y),))[1]
        return jnp.mean(x**2) + jnp.mean(means) + jnp.mean(curved**2)

    return descent(loss, weights(2), normal(512, WIDTH), normal(512, WIDTH))


@pytest.mark.slow
def test_the_line_is_planned_before_bodies_where_xla_needs_more_than_expected():
    """Its peak is not where loops save, so to plan more of them would be in vain."""
    step, args = beside_a_curve()
    plan = remat_train_step(
        step, budget="10%", planner=QUICK, compiler_options=LITTLE_CODE
    ).plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    assert plan.loops
    assert plan.schedule is not None
    assert plan.num_compilations <= 9
    assert plan.compute_overhead < 1.4


class CostlyMemory(CpuBackend):
    """XLA:CPU on a host where a run takes long to have temporaries."""

    free_temporary_bytes = 1 << 10

    def seconds_for_temporaries(self, num_bytes):
        return num_bytes / 1e9


def test_bytes_are_left_unused_where_memory_takes_more_time_than_it_saves(of_mixed):
    asked, _, unmodified = of_mixed
    budget = unmodified.total_bytes * 90 // 100
    ample = fitted(asked, budget, unmodified).plan.measured_bytes
    with backends.registered("cpu", CostlyMemory()):
        assert fitted(asked, budget, unmodified).plan.measured_bytes < ample
