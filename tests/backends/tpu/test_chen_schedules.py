"""Plans that keep what passes from layer to layer, and the order XLA runs them in."""

import itertools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import random_function, random_materialization
from steps import (
    assert_trees_equal,
    compiled_graph,
    mlp_arguments,
    run,
    traced,
    xla_placement,
)

from coop_jax import _ext
from coop_jax.backends.tpu import chen_schedules
from coop_jax.backends.tpu.chen_schedules import layered_schedules
from coop_jax.backends.tpu.list_schedule import in_free_order
from coop_jax.emit.segments import counts_without_guards, cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.decoded import COMPUTE, RECOMPUTE
from coop_jax.plan.live_ranges import Lifetimes, Version, lifetimes
from coop_jax.plan.planner import plan_pool, planner_options, unconstrained
from coop_jax.plan.validated import placed_apart, validated
from coop_jax.targets import named

LAYERS = 8


def deep_step(weights, x):
    """SGD step of blocks that store several values, of which one passes on."""

    def loss(weights):
        hidden = x
        for w in weights:
            inner = jnp.tanh(jnp.tanh(jnp.tanh(hidden @ w) @ w) @ w)
            hidden = hidden + inner
        return jnp.mean(hidden**2)

    grads = jax.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


def deep_arguments():
    return mlp_arguments(layers=LAYERS, batch=2048, width=256)


@pytest.fixture(scope="module")
def made():
    step = traced(deep_step, *deep_arguments(), donate_argnums=0)
    return step, compiled_graph(step)


def random_graph(seed, length=25):
    """Of a random step, and what a plan of it must not change."""
    function, arguments = random_function(seed, length)
    step = traced(function, *arguments)
    stored = random_materialization(step.program, seed, 1)
    return step, arguments, build_graph(step.program, stored, named("cpu"))


def with_addresses(graph, schedule):
    """As a schedule of the core: every block has an address of its own."""
    placements = schedule.placements.copy()
    sizes = np.array(graph.in_pool_bytes)[placements[:, 1]]
    padded = -(-sizes // schedule.alignment) * schedule.alignment
    placements[:, 2] = np.cumsum(padded) - padded
    scratch = graph.core.op_workspace_bytes
    workspaces, top = [], int(padded.sum())
    for number, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind in (COMPUTE, RECOMPUTE) and scratch[index]:
            workspaces.append((number, top))
            top += -(-int(scratch[index]) // schedule.alignment) * schedule.alignment
    return _ext.Schedule(
        schedule.steps,
        placements,
        np.zeros((0, 2), np.int64),
        np.array(workspaces, np.int64).reshape(-1, 2),
        max(top, 1),
        top,
        schedule.alignment,
    )


@hypothesis.given(seed=st.integers(0, 2**16))
@pytest.mark.slow
def test_layered_plans_are_valid_and_keep_every_value(seed):
    """Random steps have no layers: wherever they are divided, nothing may change."""
    step, arguments, graph = random_graph(seed)
    expected = run(step.program, arguments)
    for schedule in layered_schedules(graph, 64)[::4]:
        assert _ext.validate(graph.core, with_addresses(graph, schedule)) == []
        placement = xla_placement(step.program, "cpu")
        program = placement.realize(graph, schedule, is_guarded=False).program
        assert_trees_equal(run(program, arguments), expected)


def test_layers_of_a_network_are_found(made):
    """Of a plan with a boundary per layer, little but the layers' results is kept."""
    _, graph = made
    schedules = layered_schedules(graph, 64)
    least = min(schedules, key=lambda s: s.statistics.max_live_bytes)
    most = unconstrained(graph, _ext.PlanOptions()).statistics.max_live_bytes
    assert least.statistics.max_live_bytes < most / 2
    assert 0 < least.statistics.recompute_seconds < least.statistics.compute_seconds
    overhead = least.statistics.recompute_seconds / least.statistics.compute_seconds
    assert least.statistics.compute_overhead == pytest.approx(1 + overhead)


def test_what_is_overwritten_is_not_read_again(made):
    """The weights are donated: layers are made again before theirs are updated."""
    step, graph = made
    assert graph.overwritten_by
    arguments = deep_arguments()
    expected = run(step.program, arguments)
    for schedule in layered_schedules(graph, 64):
        assert _ext.validate(graph.core, with_addresses(graph, schedule)) == []
        segments = cut(graph, schedule, fence_free_inputs=True, is_guarded=False)
        counts = [len(segment.executions) for segment in segments]
        assert counts == counts_without_guards(graph, schedule)
        overwritten = set()
        for execution in itertools.chain(*(s.executions for s in segments)):
            inputs = graph.operations[execution.operation].inputs
            assert overwritten.isdisjoint(inputs)
            overwritten.update(graph.overwritten_by.get(execution.operation, ()))
        placement = xla_placement(step.program, "cpu")
        program = placement.realize(graph, schedule, is_guarded=False).program
        assert_trees_equal(run(program, arguments), expected)


@pytest.mark.parametrize("length", [1, 2, 50])
def test_a_step_without_a_way_back_has_no_layers(length):
    def step(x):
        for _ in range(length):
            x = jnp.tanh(x) @ x
        return x.sum()

    step = traced(step, jnp.ones((8, 8)))
    stored = random_materialization(step.program, 0, 0)
    assert layered_schedules(build_graph(step.program, stored, named("cpu")), 64) == []


@hypothesis.given(seed=st.integers(0, 2**16))
def test_the_free_order_is_one_that_may_be_run(seed):
    """Within segments, after what makes what is read; the same versions and uses."""
    _, _, graph = random_graph(seed)
    for schedule in layered_schedules(graph, 64)[::4]:
        lives = lifetimes(graph, schedule)
        counts = counts_without_guards(graph, schedule)
        free = in_free_order(graph, lives, counts)
        ends = np.cumsum(counts)
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            assert sorted(free.operation[first:end]) == sorted(lives.operation[first:end])
        there = set(range(graph.num_inputs))
        for operation in free.operation:
            assert there.issuperset(graph.operations[operation].inputs)
            there.update(graph.operations[operation].outputs)
        for version in free.versions:
            assert version.uses[0] == version.first
            assert version.last >= version.uses[-1]
        kept = sorted((v.tensor, len(v.uses)) for v in lives.versions)
        assert sorted((v.tensor, len(v.uses)) for v in free.versions) == kept
        assert sum(free.workspace_bytes) == sum(lives.workspace_bytes)


def test_the_free_order_frees_before_it_makes(made):
    """All weights are updated at the end of the step: rather right after their gradient."""
    _, graph = made
    operations = range(len(graph.operations))
    updates = [k for k in operations if k in graph.overwritten_by]
    order = [k for k in operations if k not in updates] + updates
    lives = lives_in(graph, order)
    free = in_free_order(graph, lives, [len(order)])
    before, after = (
        found.live_bytes(graph.in_pool_bytes).mean() for found in (lives, free)
    )
    assert after < before


def lives_in(graph, order):
    """The lifetimes of a step that runs in another order."""
    now = {operation: number for number, operation in enumerate(order)}
    versions = []
    for tensor, made in enumerate(graph.core.producer.tolist()):
        if made >= 0 and graph.in_pool_bytes[tensor]:
            reads = (k for k in order if tensor in graph.operations[k].inputs)
            uses = sorted({now[made], *(now[k] for k in reads)})
            is_result = graph.core.last_use[tensor] == len(order)
            last = len(order) - 1 if is_result else uses[-1]
            versions.append(Version(tensor, now[made], last, tuple(uses)))
    versions.sort(key=lambda version: (version.first, version.tensor))
    scratch = graph.core.op_workspace_bytes[order]
    return Lifetimes(tuple(versions), tuple(order), scratch)


# Ways in which a layered plan could be wrong: what makes a part of it, spoilt.
SPOILT = {
    "order": ("_executions", lambda made: made[:-1]),
    "missing_operand": ("_executions", lambda made: [made[-1], *made[:-1]]),
    "live_bytes": ("_max_live_bytes", lambda claimed: claimed - 64),
}


@pytest.mark.parametrize("violation", SPOILT)
def test_the_validator_sees_every_layered_plan(made, monkeypatch, violation):
    _, graph = made
    name, spoil = SPOILT[violation]
    part = getattr(chen_schedules, name)
    monkeypatch.setattr(chen_schedules, name, lambda *args: spoil(part(*args)))
    with pytest.raises(AssertionError, match=f"failed validation: .*: {violation}: "):
        layered_schedules(graph, 64)


@hypothesis.settings(max_examples=10)
@hypothesis.given(seed=st.integers(0, 2**16), alignment=st.sampled_from([1, 64, 1024]))
def test_the_claims_of_layered_plans(seed, alignment):
    """Without addresses, and with packed ones, the same bytes are alive."""
    _, _, graph = random_graph(seed)
    for schedule in layered_schedules(graph, alignment)[::4]:
        claimed = schedule.statistics.max_live_bytes
        apart = placed_apart(graph, schedule)
        assert _ext.validate(graph.core, apart, live_bytes=claimed) == []
        (text,) = _ext.validate(graph.core, apart, live_bytes=claimed - 1)
        assert ": limit: what is in use at once needs" in text


def test_tensors_of_no_bytes_in_layered_plans():
    """They take no place, are made once and need no block."""

    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                empty = jnp.sin(hidden[:0])
                hidden = hidden + jnp.tanh(hidden @ w) + jnp.cos(empty).sum()
            return (hidden**2).mean()

        return jax.grad(loss)(weights)

    weights = [jnp.eye(64)] * LAYERS
    program = traced(step, weights, jnp.ones((512, 64))).program
    stored = random_materialization(program, 0, 1)
    graph = build_graph(program, stored, named("cpu"))
    empty = [v for v in graph.tensors if 0 in v.aval.shape]
    assert empty, "there are such tensors"
    assert layered_schedules(graph, 64)


def test_plans_keep_their_promise(made):
    _, graph = made
    options = planner_options("search", 64)
    most = unconstrained(graph, options).statistics.max_live_bytes
    room = most * 3 // 4
    schedule = plan_pool(graph, room, options)
    assert schedule.statistics.max_live_bytes <= room
    assert _ext.validate(graph.core, schedule, live_bytes=room) == []
    with pytest.raises(AssertionError, match="limit: what is in use at once needs"):
        validated(graph.core, schedule, live_bytes=schedule.statistics.max_live_bytes - 1)
