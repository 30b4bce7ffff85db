"""Order fences: a plan whose order XLA left, with fences that keep it to that."""

from __future__ import annotations

import functools
import random

import jax
import numpy as np
import pytest
from message_passing import arguments, message_passing_step, problem_for
from steps import QUICK, mlp_arguments, mlp_step

import coop_jax
from coop_jax.plan.decoded import executions
from coop_jax.plan.planner import plan_pool, unconstrained
from coop_jax.search.live_bytes_feedback import executions_by_instruction
from coop_jax.search.order_feedback import _out_of_order, same_fences
from coop_jax.search.other_orders import in_order
from coop_jax.search.replayed_order import ReplayedOrder
from coop_jax.xla.buffer_assignment import published_module, temporary_addresses
from coop_jax.xla.liveness import live_bytes

# Of the way from the fewest bytes to all, for a plan.
_PARTS = (0.5, 0.7, 0.8)


@functools.cache
def problem():
    return problem_for(message_passing_step, *arguments())


@functools.cache
def compiled(part):
    """A plan for a part of the way from the fewest bytes to all, without order fences and
    with them."""
    made = problem()
    graph, smallest = made.smallest_of(made.graphs[:1])
    most = unconstrained(graph, QUICK).statistics.max_live_bytes
    pool = smallest.pool_bytes + int(part * (most - smallest.pool_bytes))
    measured = made.compile_plan(graph, plan_pool(graph, pool, QUICK))
    return measured, in_order(made, measured)


def plan_of(measured):
    return measured.candidate.graph, measured.candidate.schedule


def missed_by(measured):
    return measured.total_bytes - measured.candidate.planned_bytes


def test_order_fences_keep_plans_nearer_to_their_bytes():
    missed = [p for p in map(compiled, _PARTS) if missed_by(p[0]) > p[0].total_bytes // 50]
    assert missed, "else this shows nothing"
    for measured, ordered in missed:
        assert ordered.candidate.schedule is measured.candidate.schedule
        assert missed_by(ordered) < missed_by(measured) / 2
        counts = [len(m.candidate.realized.segments) for m in (measured, ordered)]
        assert counts[1] - counts[0] == len(ordered.candidate.ordered_before) > 0


def test_order_fences_stand_where_executions_are_the_other_way_round():
    measured, ordered = compiled(0.5)
    module = published_module(measured.compiled)
    numbers = [n for n in executions_by_instruction(module) if n is not None]
    first = {n: numbers.index(n) for n in numbers}
    last = {n: at for at, n in enumerate(numbers)}
    for fence in ordered.candidate.ordered_before:
        begun = min(first[n] for n in numbers if n >= fence)
        done = max(last[n] for n in numbers if n < fence)
        assert begun < done


def test_a_step_with_order_fences_has_the_same_numbers():
    step, args = jax.jit(message_passing_step), arguments()
    _, ordered = compiled(0.5)
    assert ordered.candidate.ordered_before
    results = jax.tree.leaves(ordered.compiled(*args))
    for result, expected in zip(results, jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)


def test_a_plan_that_is_run_in_its_order_has_no_order_fences():
    made = problem_for(mlp_step, *mlp_arguments(layers=4))
    graph, smallest = made.smallest_of(made.graphs[:1])
    measured = made.compile_plan(graph, smallest.schedule)
    assert measured.recompute_seconds
    assert in_order(made, measured) is measured
    assert len(made.measured) == 1


def test_a_first_plan_that_misses_is_kept_with_order_fences():
    """Where the same plan keeps the budget, no other is made for fewer bytes."""
    measured, ordered = compiled(0.5)
    budget = (measured.total_bytes + ordered.total_bytes) // 2
    step = coop_jax.remat_train_step(message_passing_step, budget=budget, planner=QUICK)
    plan = step.plan(*arguments())
    assert plan.measured_bytes <= budget
    as_planned = measured.candidate.schedule.statistics.compute_overhead
    assert plan.compute_overhead < as_planned + 0.02


@pytest.mark.parametrize("seed", range(20))
def test_out_of_order_is_what_is_begun_before_something_earlier_is_done(seed):
    rng = random.Random(seed)
    numbers = [rng.randrange(-1, 12) for _ in range(rng.randrange(30))]
    is_over = [rng.random() < 0.5 for _ in numbers]
    expected = []
    for at, over in enumerate(is_over):
        begun = {n for n in numbers[: at + 1] if n >= 0}
        to_come = {n for n in numbers[at + 1 :] if n >= 0}
        if over and begun and to_come and min(to_come) < max(begun):
            expected.append((min(to_come), max(begun)))
    assert list(_out_of_order(numbers, is_over)) == expected


def replayed(measured):
    """The executable of a plan, to be replayed, and the executions of its instructions."""
    graph, schedule = plan_of(measured)
    module = published_module(measured.compiled)
    runs = executions(graph, schedule)
    numbers = [-1 if n is None else n for n in executions_by_instruction(module)]
    places = temporary_addresses(measured.compiled, module)
    return ReplayedOrder(graph, runs, module, numbers, places), live_bytes(module, places)


def test_without_fences_the_replayed_bytes_are_those_of_the_executable():
    for measured, _ in map(compiled, _PARTS):
        order, live = replayed(measured)
        assert order.most_bytes(()) == live.max()


def test_replayed_bytes_are_those_of_the_executable_with_the_fences():
    """Here XLA keeps some more, as it fuses otherwise."""
    for measured, ordered in map(compiled, _PARTS):
        fences = ordered.candidate.ordered_before
        if fences:
            order, before = replayed(measured)
            _, after = replayed(ordered)
            assert order.most_bytes(fences) < before.max()
            assert abs(order.most_bytes(fences) / after.max() - 1) < 0.15


def test_fences_without_the_needless_do_as_much():
    measured, _ = compiled(0.5)
    order, _ = replayed(measured)
    every = range(1, len(executions(*plan_of(measured))))
    limit = int(1.01 * order.most_bytes(every))
    few = order.without_needless(every, limit)
    assert len(few) < len(every) / 4
    assert order.most_bytes(few) <= limit
    for fence in few:
        assert order.most_bytes(few - {fence}) > limit, "each is needed"


def test_fences_of_another_plan_stand_before_the_same_executions():
    _, ordered = compiled(0.5)
    known = ordered.candidate
    assert known.ordered_before
    same = same_fences(known.graph, known.schedule, [known])
    assert same == known.ordered_before
    graph, schedule = plan_of(compiled(0.7)[0])
    runs, of_known = executions(graph, schedule), executions(*plan_of(ordered))
    fences = same_fences(graph, schedule, [known])
    assert fences
    fenced = {graph.operations[runs[number].operation].anchor for number in fences}
    known_fenced = {
        known.graph.operations[of_known[number].operation].anchor
        for number in known.ordered_before
    }
    assert fenced <= known_fenced
    assert same_fences(graph, schedule, []) == frozenset()
