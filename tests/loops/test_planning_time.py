"""The time of planning loops depends on their bodies, not on their lengths; and the time
that a plan is said to take.

Times are those of the processor: other work on the machine does not add to them.
"""

import dataclasses
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import pytest
from models.loops import simulation
from models.scanned_decoder import DecoderSizes, decoder_problem
from scanned_steps import descent, normal, scanned

from coop_jax import remat_train_step
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.hints import NO_HINTS
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.loops.parts import in_groups, mixture
from coop_jax.plan.planner import planner_options
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.targets import target_of

SIZES = DecoderSizes(
    width=32, hidden=96, heads=2, groups=1, vocabulary=64, batch=4, sequence=32
)


def planning(traced):
    """Seconds of all plans of the loops of a step, nothing compiled."""
    start = time.process_time()
    target = target_of(traced.device())
    options = planner_options("search", target.alignment_bytes)
    menu = menu_of(traced.program, target)
    for _, last in menu.stretches:
        program = with_planned_pairs(traced.program, menu.saving(last))
        realize = XlaPlacement(traced.backend, NO_HINTS).realize
        bodies = TightBodies(program, target, options, realize)
        _, planned, _ = bodies.saving(bodies.most_saved_bytes)
        assert planned or bodies.most_saved_bytes == 0
    return time.process_time() - start


def layers(count):
    step, args = scanned(layers=count)
    return TracedStep.trace(step, {}, args, {})


@pytest.mark.slow
def test_96_layers_are_planned_in_the_time_of_12():
    few, many = layers(12), layers(96)
    seconds = [(planning(few), planning(many)) for _ in range(3)]
    few_seconds, many_seconds = map(statistics.median, zip(*seconds, strict=True))
    assert many_seconds <= 1.5 * few_seconds


def planned(step, args, budget):
    """The loops of a step that is planned for a budget, and the seconds until then, with
    its compilations."""
    jax.clear_caches()
    start = time.process_time()
    plan = remat_train_step(step, budget=budget, donate_argnums=0).plan(*args)
    assert plan.recipe.loops is not None
    return plan.recipe.loops, time.process_time() - start


@pytest.mark.slow
@pytest.mark.hand
def test_a_decoder_of_96_layers_is_planned_and_compiled_in_the_time_of_12():
    def seconds(layers):
        step, args = decoder_problem(dataclasses.replace(SIZES, layers=layers))
        return planned(step, args, "60%")[1]

    few, many = zip(*[(seconds(12), seconds(96)) for _ in range(2)], strict=True)
    assert min(many) <= 1.5 * min(few)


@pytest.mark.parametrize("budget", ["60%", "20%"])
def test_10_000_steps_of_a_simulation_are_planned_and_compiled_at_once(budget):
    """Of the example's sizes; the smaller budget takes groups. A limit of 30 seconds."""
    loops, seconds = planned(*simulation(None), budget)
    assert loops.planned[0].iteration.pair.length == 10_000
    assert seconds < 15


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
