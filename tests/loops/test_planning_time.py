"""The time of planning loops depends on their bodies, not on their lengths; and the time
that a plan is said to take."""

import sys
import time

import jax
import jax.numpy as jnp
import pytest
from scanned_steps import descent, normal, scanned

from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.hints import NO_HINTS
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.loops.parts import in_groups, mixture
from coop_jax.plan.planner import planner_options
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.targets import target_of


def planning(traced):
    """Seconds of all plans of the loops of a step, nothing compiled."""
    start = time.perf_counter()
    target = target_of(traced.device())
    options = planner_options("search", target.alignment_bytes)
    menu = menu_of(traced.program, target)
    for _, last in menu.stretches:
        program = with_planned_pairs(traced.program, menu.saving(last))
        realize = XlaPlacement(traced.backend, NO_HINTS).realize
        bodies = TightBodies(program, target, options, realize)
        _, planned, _ = bodies.saving(bodies.most_saved_bytes)
        assert planned or bodies.most_saved_bytes == 0
    return time.perf_counter() - start


def layers(count):
    step, args = scanned(layers=count)
    return TracedStep.trace(step, {}, args, {})


@pytest.mark.slow
def test_96_layers_are_planned_in_the_time_of_12():
    few, many = layers(12), layers(96)
    seconds = [(planning(few), planning(many)) for _ in range(2)]
    assert min(b for _, b in seconds) <= 1.5 * min(a for a, _ in seconds)


def test_10_000_steps_of_a_simulation_are_planned_at_once():
    def loss(speed, start):
        def body(state, _):
            height, rate = state
            bend = jnp.roll(height, 1) + jnp.roll(height, -1) - 2 * height
            rate = rate + 0.01 * jnp.tanh(speed) * jnp.sin(bend)
            return (height + 0.01 * rate, rate), None

        (height, _), _ = jax.lax.scan(body, (start, start * 0), None, length=10_000)
        return jnp.mean(height**2)

    step, args = descent(loss, normal(256), normal(256, seed=1))
    assert planning(TracedStep.trace(step, {}, args, {})) < 15


def deep(num_equations):
    """A step whose loop has a body of so many products, each of which is stacked."""

    def loss(weight, start):
        def body(x, _):
            for _ in range(num_equations):
                x = x @ weight
            return x, None

        return jnp.sum(jax.lax.scan(body, start, None, length=4)[0])

    step, args = descent(loss, normal(8, 8), normal(8, 8, seed=1))
    return TracedStep.trace(step, {}, args, {})


def num_calls(function):
    """Calls of functions while a function runs: as good as its time, and without noise."""
    count = 0

    def look(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def test_planning_is_linear_in_the_equations_of_a_body():
    counts = []
    for num_equations in (100, 400):
        traced = deep(num_equations)
        target = target_of(traced.device())
        (choices,) = menu_of(traced.program, target).choices  # Fills JAX's caches.
        assert len(choices.iteration.pair.residuals) >= num_equations - 1
        counts.append(num_calls(lambda t=traced, d=target: menu_of(t.program, d)))
    assert counts[1] <= 5 * counts[0]


def test_groups_take_the_time_of_the_forward_loop_once_more():
    traced = layers(12)
    (choices,) = menu_of(traced.program, target_of(traced.device())).choices
    retained = choices.hull[-1]
    alike = mixture(choices.iteration, retained, retained, 0)
    grouped = in_groups(choices.iteration, retained, 4)
    more = grouped.recompute_seconds - alike.recompute_seconds
    assert more == pytest.approx(12 * choices.iteration.forward_seconds)
