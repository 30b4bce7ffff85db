"""As it is: a program that needs no schedule, compiled as the plans of a search are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.base.options import PlanOptions
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.search.candidates import Measured
from coop_jax.search.placements import XlaPlacement
from coop_jax.search.problem import Problem
from coop_jax.targets import Target
from coop_jax.trace.program import Program


def as_it_is(
    program: Program,
    target: Target,
    options: PlanOptions,
    expected_bytes: int,
    placement: XlaPlacement,
    compile_program: Callable[[Program], Any],
    log: Callable[[str], None],
    seconds_of: Callable[[Any], float | None],
    *,
    leaves_unchanged: bool,
) -> Measured:
    """A program that needs no schedule, compiled, with the schedule that changes nothing.

    Arguments:
        expected_bytes: all bytes that it is expected to need.
        leaves_unchanged: as of `Problem`, of a program that was not compiled.
        others: as of `Problem`.
    """
    graph = build_graph(program, from_rules(program), target)
    problem = Problem(
        *([graph], options, 0, placement, compile_program, log),
        seconds_of=seconds_of,
        leaves_unchanged=leaves_unchanged,
    )
    planned = problem.plan([graph], sum(graph.in_pool_bytes))
    assert planned is not None, "all values have room"
    error = expected_bytes - problem.planned_bytes(*planned)
    measured = problem.compile_plan(*planned, error)
    candidate = dataclasses.replace(
        measured.candidate, planned_bytes=expected_bytes, predicted_bytes=expected_bytes
    )
    return dataclasses.replace(measured, candidate=candidate)
