"""Recipes of plans that no search chose: nothing is compiled for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from steps import traced

from coop_jax.base.options import PlanOptions
from coop_jax.emit.hints import NO_HINTS
from coop_jax.emit.inside_readers import inside_readers, with_inside_readers
from coop_jax.graph.stored_values import from_rules
from coop_jax.loops.branches_again import with_residuals_inside
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.menu import menu_of
from coop_jax.plan.planner import plan_pool, planner_options, smallest_pool, unconstrained
from coop_jax.saved.recipe import FIGURES, Recipe
from coop_jax.saved.subject import Subject
from coop_jax.search.candidates import Candidate
from coop_jax.search.graphs import graphs_of
from coop_jax.search.placements import XLA_PLACES, XlaPlacement, unless_unchanged
from coop_jax.search.stretches import stretches
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.targets import target_of

QUICK = PlanOptions(search_effort=1000)  # These plans need not be good.
NO_FIGURES = dict.fromkeys(FIGURES, 0)


def subject_of(step: Callable, args: tuple, **jit_options: Any) -> Subject:
    return Subject.of(traced(step, *args, **jit_options), "search", XLA_PLACES)


def text_of(recipe: Recipe) -> str:
    """The text of a plan file; the program that is made of it is the recipe's."""
    return recipe.text("A plan", NO_FIGURES)


def inside_readers_of(subject: Subject, layers: tuple[int, ...] = ()) -> Recipe:
    """A plan on the program that makes values again inside of late readers, or layers."""
    target = target_of(subject.device)
    options = planner_options(QUICK, target.alignment_bytes)
    inside = inside_readers(subject.program, from_rules(subject.program))
    assert inside is not None
    if layers:
        inside = dataclasses.replace(inside, layers=(*layers, inside.after))
    program = with_inside_readers(subject.program, inside)
    stored = from_rules(program)
    [graph, *_] = graphs_of(program, stored, target, options)
    placement = XlaPlacement(subject.backend, subject.backend.fence_hints(program, stored))
    schedule = smallest_pool(graph, options).schedule
    realized = placement.realize(graph, schedule)
    realized = unless_unchanged(realized, graph)
    return Recipe(subject, None, Candidate(graph, schedule, realized, 0, 0), inside)


def straight_lines(subject: Subject) -> Iterator[Recipe]:
    """Plans of a straight line: half way to the smallest pool in XLA's order, with memory
    fences and order fences; of the smallest in the other one, without."""
    target = target_of(subject.device)
    options = planner_options(QUICK, target.alignment_bytes)
    stored = from_rules(subject.program)
    graphs = graphs_of(subject.program, stored, target, options)
    placement = XlaPlacement(
        subject.backend, subject.backend.fence_hints(subject.program, stored)
    )
    smallest = smallest_pool(graphs[1], options)
    most = unconstrained(graphs[0], options).statistics.max_live_bytes
    half = plan_pool(graphs[0], (most + smallest.pool_bytes) // 2, options)
    for is_guarded, before, graph, schedule in (
        (True, frozenset({1, 2}), graphs[0], half),
        (False, frozenset(), graphs[1], smallest.schedule),
    ):
        realized = placement.realize(
            graph, schedule, is_guarded=is_guarded, ordered_before=before
        )
        candidate = Candidate(graph, schedule, realized, 0, 0, is_guarded, before)
        yield Recipe(subject, None, candidate)


def plans_with_branches_again(subject: Subject) -> Iterator[Recipe]:
    """Those of `straight_lines`, of the step whose gradients run branches again."""
    program, again = with_residuals_inside(subject.program)
    assert again
    for recipe in straight_lines(dataclasses.replace(subject, program=program)):
        yield dataclasses.replace(recipe, subject=subject, branches_again=program)


def plans_of_loops(subject: Subject, *, is_tight: bool = False) -> Iterator[Recipe]:
    """Plans of a step's loops: half way on each stretch of the path and at its end.

    Arguments:
        is_tight: also with bodies as tight as they can be.
    """
    target = target_of(subject.device)
    options = planner_options(QUICK, target.alignment_bytes)
    realize = XlaPlacement(subject.backend, NO_HINTS).realize

    def bodies_of(program, is_worth):
        eqns = program.eqns if is_tight else ()
        program = dataclasses.replace(program, eqns=eqns)
        return [TightBodies(program, target, options, realize)]

    program = with_broadcasts_inside(subject.program)
    for stretch in stretches(
        *(program, menu_of(program, target)),
        *(
            lambda inner: menu_of(inner, target),
            bodies_of,
            lambda saved_bytes: saved_bytes > 0,
        ),
    ):
        places = {stretch.high}
        if stretch.menu is not None:
            places.add((stretch.low + stretch.high) // 2)
        for at in places:
            yield Recipe(subject, stretch.plan(at)[0])
