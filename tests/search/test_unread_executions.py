"""Executions that nothing reads: no work, for XLA removes them, and none in the report."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from random_steps import random_step
from steps import QUICK, traced

from coop_jax.compile.as_written import compile_both
from coop_jax.emit.segments import executions_in
from coop_jax.plan.unread_executions import overhead_of_read, read_executions, run_again
from coop_jax.report import planned_plan
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import problem_of
from coop_jax.trace.costs import flops
from coop_jax.xla.executable_seconds import executable_work


def residual_step(weights, x, y):
    def loss(weights):
        hidden = x
        for w in weights[:-1]:
            hidden = hidden + jnp.tanh(hidden @ w)
        return jnp.mean((hidden @ weights[-1] - y) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


@functools.cache
def tightest(seed):
    """The tightest plans of a step, compiled."""
    if seed is None:
        weights = [jnp.full((64, 64), 0.01)] * 5 + [jnp.full((64, 16), 0.01)]
        step = traced(residual_step, weights, jnp.ones((512, 64)), jnp.ones((512, 16)))
    else:
        fn, args, options = random_step(seed)
        step = traced(fn, *args, **options)
    tagged = compile_both(step).tagged
    problem = problem_of(step, QUICK, lambda line: None, tagged, XLA_PLACES)
    BudgetSearch(problem).smallest()
    return problem.measured


def plans(seed):
    for measured in tightest(seed):
        candidate = measured.candidate
        executions = executions_in(candidate.realized.segments)
        yield measured, candidate.graph, executions


def reached_from_results(graph, executions):
    """The executions on a way to a result: forwards to versions, backwards from results."""
    version = dict.fromkeys(range(graph.num_inputs))
    reads = []
    for number, execution in enumerate(executions):
        inputs = graph.operations[execution.operation].inputs
        reads.append({version[t] for t in inputs} - {None})
        version.update(dict.fromkeys(execution.makes, number))
    results = [graph.index_of[v] for v in graph.program.outvars]
    found, todo = set(), [version[t] for t in results if version[t] is not None]
    while todo:
        number = todo.pop()
        if number not in found:
            found.add(number)
            todo += reads[number]
    return [executions[number] for number in sorted(found)]


@pytest.mark.parametrize("seed", [None, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_what_is_read_is_what_results_are_made_of(seed):
    is_one_unread = False
    for _, graph, executions in plans(seed):
        read = read_executions(graph, executions)
        assert read == reached_from_results(graph, executions)
        is_one_unread |= len(read) < len(executions)
    assert is_one_unread, "else this shows nothing"


def test_the_executable_has_the_products_of_what_is_read_and_no_others():
    is_less = False
    for measured, graph, executions in plans(None):
        work = executable_work(measured.compiled, graph.target)

        def products(some, graph=graph):
            eqns = graph.program.eqns
            return sum(
                flops(eqns[index])
                for execution in some
                for index in graph.operations[execution.operation].equations
                if eqns[index].primitive.name == "dot_general"
            )

        assert work.product_flops == products(read_executions(graph, executions))
        is_less |= work.product_flops < products(executions)
    assert is_less, "else this shows nothing"


@pytest.mark.parametrize("seed", [None, 3, 5])
def test_the_report_is_of_what_is_read(seed):
    device = jax.devices()[0]
    for measured, graph, executions in plans(seed):
        plan = planned_plan(device, 0, 0, 1, measured, 1)
        again = run_again(read_executions(graph, executions))
        assert sum(item.count for item in plan.recomputations) == len(again)
        assert plan.recomputed_flops == sum(graph.flops[e.operation] for e in again)
        of_all = measured.candidate.schedule.statistics.compute_overhead
        assert 1 < plan.compute_overhead <= of_all
        is_all_read = len(read_executions(graph, executions)) == len(executions)
        assert is_all_read == (plan.compute_overhead == of_all)


def test_what_runs_late_for_the_first_time_is_no_recomputation():
    """An operation that is evicted at once and made where it is needed."""
    _, _, executions = next(plans(None))
    first = next(e for e in executions if not e.is_recompute and e.makes)
    late = dataclasses.replace(first, is_recompute=True)
    assert run_again([first, late]) == [late]
    assert run_again([late]) == []


def test_what_has_effects_counts_as_read():
    def step(x):
        y = jnp.sin(x) @ x
        jax.debug.print("{}", jnp.cos(y).sum())
        return y.sum()

    step = traced(step, jnp.ones((64, 64)))
    both = compile_both(step)
    problem = problem_of(step, QUICK, lambda line: None, both.tagged, XLA_PLACES)
    graph = problem.graphs[0]
    schedule = problem.plan(problem.graphs, 2**30)[1]
    executions = executions_in(problem.candidate(graph, schedule).realized.segments)
    assert read_executions(graph, executions) == executions
    assert overhead_of_read(graph, schedule, executions) == 1
