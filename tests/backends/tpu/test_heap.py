"""The expected bytes of a schedule where XLA packs as XLA:TPU does, and its search."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import TARGET, compiled_graph, mlp_arguments, mlp_step, traced, xla_placement

from coop_jax import backends
from coop_jax.backends.tpu import heap, pool_sweep
from coop_jax.backends.tpu.chen_schedules import layered_schedules
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.plan.planner import (
    PlanOptions,
    plan_pool,
    planner_options,
    smallest_pool,
    unconstrained,
)
from coop_jax.search.candidates import Candidate, Measured
from coop_jax.search.problem import Problem
from coop_jax.search.sweep_search import SweepSearch, _less_alike
from coop_jax.xla.memory_figures import compile_measured, memory_figures

# A fast planner: what is tested here is what is done with its plans.
OPTIONS = PlanOptions(policy="lookahead", alignment=64, overhead_limit=10.0)


@pytest.fixture(scope="module")
def made():
    step = traced(mlp_step, *mlp_arguments(), donate_argnums=0)
    return step, compiled_graph(step), memory_figures(step.compile(step.program))


@pytest.fixture(scope="module")
def graph(made):
    return made[1]


@pytest.mark.parametrize("part", [1.0, 0.7, 0.5])
def test_the_blocks_are_those_of_the_schedule(graph, part):
    """At any time the same bytes as the planner counts, blocks taken over once."""
    options = planner_options("search", 64)
    most = unconstrained(graph, options).statistics.max_live_bytes
    schedule = plan_pool(graph, int(part * most), options)
    first, last, _ = heap.blocks_in_main_memory(graph, schedule)
    assert (first <= last).all()
    alive = heap.bytes_alive(graph, schedule)
    assert alive == schedule.statistics.max_live_bytes


def test_an_expected_heap_is_at_least_what_is_alive(graph):
    schedule = unconstrained(graph, OPTIONS)
    expected = heap.expected_heap(graph, schedule)
    assert expected.bytes >= schedule.statistics.max_live_bytes
    assert expected == heap.expected_heap(graph, schedule)


def test_what_stays_near_takes_no_main_memory(graph):
    target = dataclasses.replace(graph.target, near_bytes=1 << 40)
    large = dataclasses.replace(graph, target=target)
    schedule = unconstrained(large, OPTIONS)
    alive = heap.bytes_alive(large, schedule)
    assert alive < heap.bytes_alive(graph, schedule) / 2
    assert heap.expected_heap(large, schedule).bytes < alive * 2


def test_what_one_fusion_makes_begins_together(graph):
    schedule = unconstrained(graph, OPTIONS)
    assert len({at for at in graph.made_at if at >= 0}) > 1
    whole = heap.blocks_in_main_memory(graph, schedule)
    together = dataclasses.replace(graph, made_at=(7,) * len(graph.operations))
    first, last, size = heap.blocks_in_main_memory(together, schedule)
    assert set(first) == set(last) == {0}
    np.testing.assert_array_equal(size, whole[2])
    apart = dataclasses.replace(graph, made_at=(-1,) * len(graph.operations))
    first, last, _ = heap.blocks_in_main_memory(apart, schedule)
    lives = lifetimes(apart, schedule)
    with_scratch = np.flatnonzero(lives.workspace_bytes)
    assert set(first) <= {v.first for v in lives.versions} | set(with_scratch)
    assert last.max() == max(v.last for v in lives.versions)


def test_a_step_that_stores_nothing_needs_nothing():
    step = traced(lambda x: x + 1, jnp.ones(4))
    graph = build_graph(step.program, stored_values.from_rules(step.program), TARGET)
    schedule = unconstrained(graph, OPTIONS)
    assert heap.expected_heap(graph, schedule) == heap.ExpectedHeap(0, 0)
    assert heap.bytes_alive(graph, schedule) == 0


def test_scans_are_in_order_and_hold_every_plan_once(graph):
    room = unconstrained(graph, OPTIONS).statistics.max_live_bytes * 3 // 4
    plans = pool_sweep.scan_down([graph], OPTIONS, room)
    seconds = [plan.recompute_seconds for plan in plans]
    assert seconds == sorted(seconds)
    assert len({plan.key for plan in plans}) == len(plans) > 3
    tightest = pool_sweep.scan_tightest([graph], OPTIONS, room // 2)
    likely = [plan.likely_bytes for plan in tightest]
    times = [plan.schedule.statistics.compute_overhead for plan in tightest]
    ranks = [size**2 * time for size, time in zip(likely, times, strict=True)]
    assert ranks == sorted(ranks)
    assert likely[0] < min(plan.likely_bytes for plan in plans[:3])


def scanned_search(made, missed_by=None):
    """With XLA's compilations for the machine's own processor.

    Arguments:
        missed_by: bytes by whether there are guards, in place of XLA's figure.
    """
    step, graph, figures = made
    placement = xla_placement(step.program, "cpu")
    compiled, guarded = [], []

    def compile_plan(graph, schedule, *, is_guarded):
        realized = placement.realize(graph, schedule, is_guarded=is_guarded)
        planned = figures.fixed_bytes + heap.expected_heap(graph, schedule).bytes
        candidate = Candidate(graph, schedule, realized, planned, planned)
        executable, total = compile_measured(lambda: step.compile(realized.program))
        if missed_by is not None:
            total = planned + missed_by[is_guarded]
        guarded.append(is_guarded)
        compiled.append(Measured(candidate, executable, total))
        return compiled[-1]

    problem = Problem(
        [graph], OPTIONS, figures.fixed_bytes, placement, step.compile, lambda line: None
    )
    problem.compile_plan = compile_plan
    return SweepSearch(problem), compiled, guarded


@pytest.mark.parametrize("percent", [90, 75, 60])
def test_the_best_of_a_scan_keeps_the_budget(made, percent):
    budget = made[2].total_bytes * percent // 100
    search, compiled, _ = scanned_search(made)
    found = search.best(budget)
    assert found in compiled
    assert found.total_bytes <= budget
    assert len(compiled) <= 3
    fits = [m for m in compiled if m.total_bytes <= budget]
    assert found.recompute_seconds == min(m.recompute_seconds for m in fits)


def test_the_second_of_the_tightest_recomputes_clearly_less():
    def plans(*seconds):
        return [SimpleNamespace(recompute_seconds=s) for s in seconds]

    def order(plans):
        return [plan.recompute_seconds for plan in _less_alike(plans)]

    assert order(plans(4.0, 3.9, 3.8, 2.0, 1.0)) == [4.0, 2.0, 3.9, 3.8, 1.0]
    assert order(plans(4.0, 3.9)) == [4.0, 3.9]
    assert order(plans(4.0)) == [4.0]


def test_a_scan_without_room_finds_nothing(made):
    search, compiled, _ = scanned_search(made)
    assert search.best(made[2].fixed_bytes) is None
    assert not compiled


@pytest.mark.parametrize("changed", ["partial_results", "expansions"])
def test_what_is_stored_for_its_bytes_is_where_nothing_else_fits(made, changed):
    """Its schedule does not say what it takes to write and read partial results."""
    step, graph, figures = made
    more = {1: frozenset()} if changed == "expansions" else frozenset({1})
    early = build_graph(step.program, graph.stored, TARGET, early=True)
    split = dataclasses.replace(early, **{changed: more})
    placement = xla_placement(step.program, "cpu")
    problem = Problem(
        *([split, graph], OPTIONS, figures.fixed_bytes, placement, step.compile),
        log=lambda line: None,
    )
    search = SweepSearch(problem)
    smallest = smallest_pool(graph, OPTIONS).pool_bytes
    ample, tight = (
        {id(plan.graph) for plan in search._scan(room) if not plan.is_layered}
        for room in (2 * smallest, int(smallest / 1.2))
    )
    assert ample == {id(graph)}
    assert id(split) in tight


def test_the_tightest_of_a_scan(made):
    search, compiled, _ = scanned_search(made)
    found = search.tightest(0)
    assert found.total_bytes == min(m.total_bytes for m in compiled)
    assert 1 < len(compiled) <= 3
    for measured in compiled:  # The bytes of one say little of another.
        assert measured.candidate.predicted_bytes == measured.candidate.planned_bytes
    search, compiled, _ = scanned_search(made)
    assert search.tightest(made[2].total_bytes) is compiled[0]
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("missed_by", "tries"),
    [
        ((1000, 0), [False, False]),  # Nothing exceeds its expected bytes by far.
        ((1 << 20, 0), [False, True, True]),  # It does, without guards.
        ((1 << 20, 2 << 20), [False, True, False]),  # More so with them.
    ],
)
def test_memory_fences_are_tried_where_a_plan_far_exceeds_its_bytes(
    made, monkeypatch, missed_by, tries
):
    searched = pool_sweep.scan_tightest
    monkeypatch.setattr(
        "coop_jax.search.sweep_search.scan_tightest",
        lambda *args: [plan for plan in searched(*args) if not plan.is_layered],
    )
    search, compiled, guarded = scanned_search(made, missed_by)
    found = search.tightest(0, num_left=3)
    assert guarded[: len(tries)] == tries
    assert found.total_bytes == min(m.total_bytes for m in compiled)
    plans = [m.candidate.schedule for m in compiled]
    assert (plans[0] is plans[1]) == tries[1]
    assert plans[-1] is not plans[0]


def test_layered_plans_have_no_guards(made, monkeypatch):
    """However much they miss by: they are made of what XLA orders by itself."""
    graph = made[1]
    plans = [
        pool_sweep.Scanned(graph, schedule, heap.expected_heap(graph, schedule))
        for schedule in layered_schedules(graph, 64)
    ]
    assert plans
    assert all(plan.is_layered for plan in plans)
    monkeypatch.setattr("coop_jax.search.sweep_search.scan_tightest", lambda *_: plans)
    search, compiled, guarded = scanned_search(made, (1 << 20, 0))
    search.tightest(0, num_left=3)
    assert len(compiled) == min(3, len(plans))
    assert not any(guarded)


def test_only_tpus_are_searched_so():
    assert backends.named("tpu").sweeps_pools
    assert not backends.named("cpu").sweeps_pools
    assert not backends.named("gpu").sweeps_pools


def cross_entropy_step(weights, x, labels):
    def loss(weights):
        logits = jnp.tanh(x @ weights[0]) @ weights[1]
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def test_the_gradient_of_a_cross_entropy_is_no_tensor_on_a_tpu():
    shape = jax.ShapeDtypeStruct
    arguments = (
        [shape((32, 32), "float32"), shape((32, 1000), "float32")],
        shape((64, 32), "float32"),
        shape((64,), "int32"),
    )
    step = traced(cross_entropy_step, *arguments)
    compiled = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, compiled)
    logits = [v for v in stored.stored_bytes if v.aval.shape == (64, 1000)]
    only = dataclasses.replace(
        stored,
        stored_bytes={
            v: size
            for v, size in stored.stored_bytes.items()
            if v is logits[0] or v.aval.shape != (64, 1000)
        },
    )

    def tensors(materialization):
        graph = build_graph(step.program, materialization, TARGET)
        return sum(
            getattr(v.aval, "shape", ()) == (64, 1000) and v not in step.program.invars
            for v in graph.tensors
        )

    on_tpu = dataclasses.replace(only, in_place="fusions")
    assert on_tpu.fuses_most
    assert not only.fuses_most
    assert tensors(on_tpu) < tensors(only)
