"""The stretches of the plans of loops, from those of the step inwards."""

from scanned_steps import nested_checkpoints, scanned

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.menu import menu_of
from coop_jax.plan.planner import planner_options
from coop_jax.search.stretches import stretches
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.targets import named
from coop_jax.xla.memory_figures import memory_figures

TARGET = named("cpu")
LARGE = 20_000


def all_stretches(program, is_worth):
    options = planner_options("search", TARGET.alignment_bytes)

    def no_bodies_of(program, _):
        return [TightBodies(program, TARGET, options, None)]

    def menu(program):
        return menu_of(program, TARGET)

    menu_first = menu(program)
    found = stretches(program, menu_first, menu, no_bodies_of, is_worth)
    return [stretch for stretch in found if stretch.menu is not None]


def test_levels_are_reached_from_the_outermost_inwards():
    """Two of three loops keep what is carried alone as they are written, and the innermost
    one all of what its gradient needs: that is thinned out with the loop around it."""
    step, args = nested_checkpoints(512)
    traced = TracedStep.trace(step, {}, args, {})
    found = all_stretches(traced.program, lambda saved_bytes: saved_bytes > LARGE)
    without_groups = [
        stretch
        for stretch in found
        if not any(p.group > 1 for pair in stretch.base.planned for p in pair.parts)
    ]
    assert [len(each.base.levels) for each in without_groups] == [0, 1, 2]
    ends = [each.plan(each.high)[0].program for each in without_groups]
    outer, middle, inner = (memory_figures(traced.compile(e)).total_bytes for e in ends)
    assert max(inner, middle) < 0.8 * outer


def test_what_is_not_worth_it_is_left_as_it_is():
    step, args = nested_checkpoints(512)
    program = TracedStep.trace(step, {}, args, {}).program
    found = all_stretches(program, lambda saved_bytes: False)
    assert found
    assert not any(stretch.base.levels for stretch in found)


def test_planned_loops_are_not_planned_again():
    program = TracedStep.trace(*scanned()[:1], {}, scanned()[1], {}).program
    found = all_stretches(program, lambda saved_bytes: True)
    assert [len(stretch.base.levels) for stretch in found] == [0] * len(found)
    assert len(found) == 2
