"""Plans for less than the budget, where memory takes more time than it saves."""

from __future__ import annotations

import functools
import math
import os
import platform
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from steps import QUICK, TARGET, traced

import coop_jax
from coop_jax import backends
from coop_jax.backends.cpu import fresh_pages
from coop_jax.compile.as_written import compile_both
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import plan_pool, planner_options, unconstrained
from coop_jax.search.candidates import GAIN_WORTH_TRYING
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.search.worthwhile_bytes import worthwhile_bytes
from coop_jax.searches import problem_of

OPTIONS = planner_options(QUICK, TARGET.alignment_bytes)
IS_GLIBC = platform.libc_ver()[0] == "glibc"


@pytest.fixture(autouse=True, scope="module")
def cheap_sines():
    """Sines as cheap as additions: plans here are of work that takes no time by itself."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("coop_jax.trace.costs.is_long", lambda eqn: False)
        yield


def light_step(weights, x):
    """Much to keep, little to compute: 70 MiB of temporaries as written."""

    def loss(weights):
        h = x
        for weight in weights:
            h = h + jnp.tanh(jnp.sin(h) * weight)
        return (h**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def light_arguments(rows=2048, width=256, layers=12):
    return [jnp.ones(width) for _ in range(layers)], jnp.ones((rows, width))


@functools.cache
def light_graph():
    step = traced(light_step, *light_arguments())
    tagged = compile_both(step).tagged
    stored = backends.stored_values(step.program, tagged)
    return build_graph(step.program, stored, TARGET)


def seconds_in(graph, pool, seconds_for):
    """Recomputation in a pool, and what it takes to have that."""
    schedule = plan_pool(graph, pool, OPTIONS)
    if schedule is None:
        return math.inf
    found = schedule.statistics
    return found.recompute_seconds + seconds_for(found.max_live_bytes)


@pytest.mark.parametrize("bytes_per_second", [1e9, 4e9, 1e10])
def test_the_pool_is_nearly_the_best_of_all(bytes_per_second):
    """Against plans for a hundred pools, with all of the effort."""
    graph = light_graph()

    def seconds_for(size):
        return size / bytes_per_second

    most = unconstrained(graph, OPTIONS).statistics.max_live_bytes
    pools = [most * part // 100 for part in range(1, 101)]
    best = min(seconds_in(graph, pool, seconds_for) for pool in pools)
    found = worthwhile_bytes(graph, OPTIONS, seconds_for)
    chosen = seconds_in(graph, most if found is None else found, seconds_for)
    all_of_it = seconds_in(graph, most, seconds_for)
    assert chosen - best <= 0.05 * (all_of_it - best) + 1e-9 * all_of_it


def test_memory_that_takes_hardly_any_time_is_used():
    graph = light_graph()
    whole = unconstrained(graph, OPTIONS).statistics
    rate = whole.max_live_bytes / (0.9 * GAIN_WORTH_TRYING * whole.compute_seconds)
    assert worthwhile_bytes(graph, OPTIONS, lambda size: size / rate) is None
    assert worthwhile_bytes(graph, OPTIONS, lambda size: 0.0) is None


def test_a_limit_below_which_memory_takes_no_time_is_aimed_at():
    """With some room left for what XLA needs beyond a plan."""
    graph = light_graph()
    whole = unconstrained(graph, OPTIONS).statistics
    limit = int(0.9 * whole.max_live_bytes)

    def seconds_for(size):
        return whole.compute_seconds * (size > limit)

    found = worthwhile_bytes(graph, OPTIONS, seconds_for, limit)
    assert 0.85 * limit < found < 0.95 * limit


def test_what_memory_takes_on_a_cpu():
    most = fresh_pages.most_for_nothing()
    assert fresh_pages.seconds_for(most) == 0.0
    assert fresh_pages.seconds_for(2 * (most + 1)) == 2 * fresh_pages.seconds_for(most + 1)
    assert fresh_pages.seconds_for(most + 1) > 0.0


@pytest.mark.skipif(not IS_GLIBC, reason="the threshold is glibc's")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the allocator is XLA:CPU's")
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="there nothing is stored")
def test_from_the_limit_on_the_system_gives_pages_to_every_run():
    """In new processes, as threads of other tests leave blocks of their own. Where the
    allocator puts a smaller block depends on the thread: of five, one uses it again."""
    limit = (fresh_pages.most_for_nothing() + 1) >> 20
    for _ in range(5):
        below, above = faulted_parts(limit - 1, limit + 1)
        assert above > 0.9
        if below < 0.2:
            return
    pytest.fail("every block below the limit is given back in every run")


def faulted_parts(*sizes):
    """The parts of temporaries of such sizes whose pages the system gives to every run."""
    code = f"import fresh_pages; print(*map(fresh_pages.faulted_part, {sizes}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("XLA_FLAGS", None)  # One device.
    command = [sys.executable, "-P", "-c", code]  # Not the sources beside it.
    printed = subprocess.check_output(command, env=environment, text=True)
    return [float(part) for part in printed.split()[-len(sizes) :]]


def planned(budget):
    step = coop_jax.remat_train_step(light_step, budget=budget)
    return step.plan(*light_arguments())


@pytest.mark.slow
def test_a_plan_leaves_room_that_is_not_worth_its_time():
    some, more = planned("70%"), planned("95%")
    assert some.measured_bytes == more.measured_bytes < 0.7 * more.unmodified_bytes
    assert some.worthwhile_bytes == more.worthwhile_bytes < some.budget_bytes
    assert "more memory would take more time than it saves" in str(more)
    # With less room than that, all of it is used.
    tight = planned(some.worthwhile_bytes)
    assert tight.worthwhile_bytes is None
    assert "more memory" not in str(tight)
    with backends.registered("cpu", backends.without("cpu", "fresh_pages")):
        whole = planned("95%")
    assert whole.worthwhile_bytes is None
    assert whole.measured_bytes > 0.8 * whole.budget_bytes


@pytest.mark.slow
def test_more_room_is_never_slower():
    """By the executables' seconds, with what their temporaries take."""
    step = traced(light_step, *light_arguments())
    both = compile_both(step)
    seconds = []
    for part in (0.33, 0.55, 0.7, 0.85, 0.97):
        log = [].append
        search = BudgetSearch(problem_of(step, QUICK, log, both.tagged, XLA_PLACES))
        seconds.append(search.run(int(part * both.total_bytes)).executable_seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] < seconds[0]


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="there other plans are made")
def test_a_pool_that_takes_no_time_is_given_up_where_it_recomputes_too_much():
    """A plan that is made for it misses it, and less would recompute more than that costs:
    then the best of larger pools is used."""
    backend, limit = backends.without("cpu"), 20 << 20
    backend.free_temporary_bytes = limit
    backend.seconds_for_temporaries = lambda size: 3e-3 * size / limit * (size > limit)
    with backends.registered("cpu", backend):
        step = traced(light_step, *light_arguments())
        both = compile_both(step)
        log = [].append
        search = BudgetSearch(problem_of(step, QUICK, log, both.tagged, XLA_PLACES))
        free_bytes = search.problem.worthwhile.free_bytes
        assert search.problem.worthwhile.pool_bytes < free_bytes
        found = search.run(int(0.9 * both.total_bytes))
    first = search.problem.measured[0]
    assert free_bytes < first.total_bytes - search.problem.fixed_bytes
    assert free_bytes < search.problem.worthwhile.pool_bytes < math.inf
    assert first.total_bytes < found.total_bytes
    assert found.recompute_seconds < first.recompute_seconds


def test_other_planners_and_placements_use_all_of_the_room():
    for options in ({"planner": "coop"}, {"placement": "arena"}):
        step = coop_jax.remat_train_step(light_step, budget="90%", **options)
        assert step.plan(*light_arguments()).worthwhile_bytes is None
