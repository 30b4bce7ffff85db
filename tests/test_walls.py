"""Plans with less alive where the walls of their heap begin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import TARGET, compiled_graph, mlp_arguments, mlp_step, traced

from coop_jax import _ext, materialize, scan, walls
from coop_jax.graph import build_graph
from coop_jax.lifetimes import lifetimes
from coop_jax.plan import RECOMPUTE, plan_pool, planner_options, unconstrained
from coop_jax.tpu_heap import expected_heap

OPTIONS = planner_options("search", 64)
UNIT = 1000 * 8 * 4  # bytes


def walled_step(x, narrow, to, back):
    """What is made first lies below the wall, and leaves a gap that is too small."""

    def pause(small):
        for _ in range(4):
            small = jnp.tanh(small) @ narrow
        return small

    low = x @ to["low"]
    wall = pause(x) @ to["wall"]  # Until the end.
    small = pause(low @ back["low"])
    small = pause((small @ to["late"]) @ back["late"])
    return small + wall @ back["wall"]


@pytest.fixture(scope="module")
def walled():
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    widths = {"low": 2000, "wall": 3000, "late": 3000}
    step = traced(
        walled_step,
        array(8, 8),
        array(8, 8),
        {name: array(8, width) for name, width in widths.items()},
        {name: array(width, 8) for name, width in widths.items()},
    )
    return build_graph(step.program, materialize.from_rules(step.program), TARGET)


@pytest.fixture(scope="module")
def graph():
    return compiled_graph(traced(mlp_step, *mlp_arguments(), donate_argnums=0))


def test_less_alive_below_a_wall_makes_room_above(walled):
    room = int(7.5 * UNIT)
    plain = plan_pool(walled, room, OPTIONS)
    assert plain.statistics.recompute_seconds == 0
    assert plain.statistics.max_live_bytes < 6.5 * UNIT
    assert expected_heap(walled, plain).bytes > room
    [fits, *_] = [
        plan
        for plan in scan.scan_down([walled], OPTIONS, room)
        if plan.likely_bytes <= room
    ]
    again = [index for kind, index in fits.schedule.steps.tolist() if kind == RECOMPUTE]
    assert [walled.tensors[t].aval.shape for k in again for t in outputs(walled, k)] == [
        (8, 2000)
    ]


def outputs(graph, operation):
    return graph.operations[operation].outputs


def test_the_reserves_are_where_the_walls_begin(walled):
    plain = plan_pool(walled, int(7.5 * UNIT), OPTIONS)
    pool = plain.statistics.max_live_bytes
    *each, together = walls.reserves_below(walled, plain, pool, UNIT)
    made = [walled.in_pool_bytes[t] for r in each for k in r for t in outputs(walled, k)]
    assert [size for size in made if size >= UNIT] == [3 * UNIT, 3 * UNIT, 2 * UNIT]
    assert together == {k: size for reserve in each for k, size in reserve.items()}
    # Where the wall begins, five units are alive and four may be.
    lives = lifetimes(walled, plain)
    [(operation, size)] = each[1].items()
    live = lives.live_bytes(walled.in_pool_bytes)[lives.operation.index(operation)]
    assert size == pool - live + UNIT


@pytest.mark.parametrize("part", [0.5, 0.7])
def test_a_reserve_is_kept_free_and_no_part_of_the_plan(graph, part):
    most = unconstrained(graph, OPTIONS).statistics.max_live_bytes
    pool = int(part * most)
    plain = plan_pool(graph, pool, OPTIONS)
    lives = lifetimes(graph, plain)
    fullest = lives.operation[int(lives.live_bytes(graph.in_pool_bytes).argmax())]
    reserve = {fullest: most // 50}
    reserved = walls.with_reserve(graph, reserve)
    schedule = plan_pool(reserved, pool, OPTIONS)
    # But for the scratch that is none, and the packing that holds it.
    for violation in _ext.validate(graph.core, schedule):
        assert "workspaces" in violation or "peak" in violation
    lives = lifetimes(graph, schedule)
    live = lives.live_bytes(graph.in_pool_bytes)
    there = live[np.array(lives.operation) == fullest]
    assert there.max() <= pool - most // 50
    assert live.max() <= pool
    scratch = reserved.core.op_workspace_bytes - graph.core.op_workspace_bytes
    assert scratch.nonzero()[0].tolist() == [fullest]
    assert walls.with_reserve(graph, {}) is graph


def test_joined():
    assert walls.joined({1: 5, 2: 3}, {2: 4}, {}) == {1: 5, 2: 4}


def test_walls_stand_on_what_was_alive():
    """The highest block first, each on the next one, down to the bottom."""
    first = np.array([0, 1, 3, 4])
    last = np.array([2, 9, 5, 5])
    size = np.array([64, 128, 64, 192])
    offset = _ext.xla_heap_offsets(first, last, size, alignment=64)
    assert offset.tolist() == [0, 64, 0, 192]
    assert walls._walls(first, last, size, offset) == [3, 1, 0]
