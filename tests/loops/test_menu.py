"""The plans of a program's loops: found however the loop is written, and equal in all."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops.planned_at_random import (
    TARGET,
    assert_equal_bits,
    planned_at_random,
    traced,
)
from scanned_steps import (
    BATCH,
    STEPS,
    WIDTH,
    descent,
    layer,
    normal,
    recurrent,
    scanned,
    weights,
)

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.loop import Loop
from coop_jax.loops.menu import menu_of
from coop_jax.xla.memory_figures import memory_figures


@pytest.mark.parametrize("name", STEPS)
def test_pairs_are_found_however_a_loop_is_written(name):
    make, count = STEPS[name]
    assert len(menu_of(traced(*make()), TARGET).choices) == count


@pytest.mark.parametrize("name", STEPS)
def test_any_choice_gives_equal_bits(name):
    step, args = STEPS[name][0]()
    program = traced(step, args)
    for seed in range(2):
        planned = planned_at_random(program, random.Random(seed))
        assert_equal_bits(program, planned, args)


@pytest.mark.parametrize("name", STEPS)
def test_every_plan_of_the_path_gives_equal_bits(name):
    step, args = STEPS[name][0]()
    program = traced(step, args)
    for part in (0.4, 1):
        planned = program
        while (menu := menu_of(planned, TARGET)).choices:
            pairs = menu.saving(int(part * menu.most_saved_bytes))
            planned = with_planned_pairs(planned, pairs)
        assert_equal_bits(program, planned, args)


def test_the_path_is_monotone_and_has_a_plan_for_every_saving():
    menu = menu_of(traced(*STEPS["two loops"][0]()), TARGET)
    first = sum(pair.kept_bytes for pair in menu.saving(0))
    saved, seconds = -1, 0.0
    for wanted in np.linspace(0, menu.most_saved_bytes, 50, dtype=int):
        planned = menu.saving(int(wanted))
        now = first - sum(pair.kept_bytes for pair in planned)
        assert now >= max(wanted, saved)
        assert sum(pair.seconds for pair in planned) >= seconds
        saved, seconds = now, sum(pair.seconds for pair in planned)
    assert saved == menu.most_saved_bytes


def test_the_next_corner_is_the_first_plan_whose_iterations_all_do_the_same():
    menu = menu_of(traced(*STEPS["two loops"][0]()), TARGET)
    corners = [[*map(id, each.corners)] for each in menu.choices]

    def is_corner(place):
        planned = menu.saving(place)
        return all(id(p) in known for p, known in zip(planned, corners, strict=True))

    places = np.linspace(0, menu.most_saved_bytes, 200, dtype=int).tolist()
    assert not all(map(is_corner, places))
    for place in places:
        corner = menu.next_corner(place)
        assert corner >= place
        assert is_corner(corner)
        assert menu.next_corner(corner) == corner
        between = [p for p in places if place <= p < corner]
        kept = [sum(pair.kept_bytes for pair in menu.saving(p)) for p in between]
        at_corner = sum(pair.kept_bytes for pair in menu.saving(corner))
        for p, kept_bytes in zip(between, kept, strict=True):
            assert not is_corner(p) or kept_bytes == at_corner
    assert menu.next_corner(0) == 0
    assert menu.next_corner(menu.most_saved_bytes + 1) == menu.most_saved_bytes


@pytest.mark.parametrize("layers", range(2, 10))
def test_no_loop_has_a_single_iteration(layers):
    """XLA takes it apart: what it is to compute again is merged with the first time."""
    menu = menu_of(traced(*scanned(layers=layers)), TARGET)
    for wanted in np.linspace(0, menu.most_saved_bytes, 60, dtype=int):
        for pair in menu.saving(int(wanted)):
            assert sum(part.count for part in pair.parts) == layers
            for part in pair.parts:
                assert part.count > 1
                assert part.group == 1 or part.count > part.group


@pytest.mark.parametrize(
    ("length", "is_left_over"), [(500, False), (27, False), (23, True)]
)
def test_groups_leave_no_iteration_over_where_the_length_can_be_divided(
    length, is_left_over
):
    """Those left over are two loops more, and keep what a group keeps while it runs."""
    [choices] = menu_of(traced(*recurrent(length)), TARGET).choices
    grouped = [plan.parts for plan in choices.corners if plan.parts[0].group > 1]
    assert grouped
    for parts in grouped:
        assert len(parts) == 1 + is_left_over


@pytest.mark.parametrize("unroll", [2, 3, 4])
def test_no_loop_of_several_iterations_at_once_has_a_single_trip(unroll):
    """Nor are iterations left over where it is divided: those lie outside of it."""
    program = traced(*scanned(layers=8, unroll=unroll))
    menu = menu_of(program, TARGET)
    for wanted in np.linspace(0, menu.most_saved_bytes, 20, dtype=int):
        planned = menu.saving(int(wanted))
        is_divided = len(planned[0].parts) > 1 or planned[0].parts[0].group > 1
        loops = loops_of(with_planned_pairs(program, planned))
        assert loops
        for loop in loops:
            assert loop.num_trips > 1
            assert loop.length % loop.unroll == 0 or not is_divided


def loops_of(program):
    """All loops, those in the bodies of others too."""
    loops = [Loop.of(eqn) for eqn in program.eqns if eqn.primitive.name == "scan"]
    return loops + [inner for loop in loops for inner in loops_of(loop.body)]


@pytest.mark.parametrize("unroll", [1, 2, 3])
def test_the_first_saved_byte_is_saved(unroll):
    def loss(w, x):
        body = lambda x, w: (layer(x, w), None)  # noqa: E731
        return jnp.mean(jax.lax.scan(body, x, w, unroll=unroll)[0] ** 2)

    step, args = descent(loss, weights(), normal(64 * BATCH, WIDTH))
    trace = TracedStep.trace(step, {}, args, {})
    menu = menu_of(trace.program, TARGET)
    kept, saved = (
        memory_figures(
            trace.compile(with_planned_pairs(trace.program, menu.saving(saved_bytes)))
        )
        for saved_bytes in (0, 1)
    )
    assert saved.total_bytes < kept.total_bytes


def test_planning_does_not_depend_on_the_number_of_iterations():
    def hull(layers):
        [choices] = menu_of(traced(*scanned(layers=layers)), TARGET).choices
        return [(r.kept_bytes, r.seconds) for r in choices.hull]

    assert hull(4) == hull(400)
