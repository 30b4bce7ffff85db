"""Searches: of a traced step, by each way to make it fit.

* `loop_search_of`: what the iterations of its loops keep.
* `problem_of`: which values of the straight line are evicted; `search.driver` solves it.
* `inside_readers_search`, `layer_search`: two ways that only pay where the compiler fuses
  cheap operations into their readers.

Each is given what it asks of the compiler (to compile, to read stored values, to price an
executable), so that nothing under `search` depends on how a step is traced or compiled.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from coop_jax.compile.as_written import (
    compile_tagged,
    least_fixed_bytes,
    predicted_fixed_bytes,
    unplanned_bytes,
)
from coop_jax.compile.bodies import has_stored_bodies, stored_of_body
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.hints import NO_HINTS
from coop_jax.emit.inside_readers import (
    InsideReaders,
    inside_readers,
    with_inside_readers,
)
from coop_jax.emit.layers_again import Layers
from coop_jax.graph.stored_values import from_rules
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.menu import menu_of
from coop_jax.plan.planner import PlanOptions, planner_options
from coop_jax.search.as_it_is import as_it_is
from coop_jax.search.candidates import Measured
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.graphs import Graphs
from coop_jax.search.layer_search import LayerSearch
from coop_jax.search.loop_search import LoopSearch
from coop_jax.search.placements import XLA_PLACES, Placing, XlaPlacement
from coop_jax.search.problem import Problem
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.search.worthwhile_place import TimeOfMemory
from coop_jax.targets import target_of
from coop_jax.trace.kernels import kernel_flops
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures


def seconds_on_device(traced: TracedStep) -> Callable[[Any], float | None]:
    """What tells the seconds of an executable of the step, on the step's device: of its
    instructions, and what it takes to have its temporaries."""
    target, kernels = target_of(traced.device()), kernel_flops(traced.program)

    def seconds_of(compiled: Any) -> float | None:
        seconds = executable_seconds(compiled, target, kernels)
        if seconds is None:
            return None
        return seconds + seconds_for_temporaries(traced, compiled)

    return seconds_of


def seconds_for_temporaries(traced: TracedStep, compiled: Any) -> float:
    """Seconds that a run of an executable of the step takes to have its temporaries."""
    temp_bytes = memory_figures(compiled).temp_bytes
    return traced.backend.seconds_for_temporaries(temp_bytes)


def as_written_seconds(traced: TracedStep, tagged: Any) -> float:
    """Seconds of the executable of the step as written; infinite where they are not known,
    or the backend has no way to make values again but schedules.

    Arguments:
        tagged: the compiled tagged step; None if XLA refused it.
    """
    backend = traced.backend
    if tagged is None or not (backend.fuses_into_readers or backend.runs_layers_again):
        return math.inf
    seconds = seconds_on_device(traced)(tagged)
    return math.inf if seconds is None else seconds


def loop_search_of(
    traced: TracedStep,
    planner: str | PlanOptions,
    unmodified_bytes: int,
    log: Callable[[str], None],
    *,
    by_rules: bool = False,
) -> LoopSearch | None:
    """The search for plans of the step's loops; None if it has no loops to plan, or the
    planner is one of the paper's baselines, which know no loops.

    Arguments:
        traced, planner, log: as of `fit_step`.
        unmodified_bytes: XLA's figure for the step as written.
        by_rules: whether XLA is not asked what it stores of bodies, a compilation for each:
            to know whether there are loops to plan.
    """
    target = target_of(traced.device())
    options = planner_options(planner, target.alignment_bytes)
    if options.policy != "search":
        return None
    realize = XlaPlacement(traced.backend, NO_HINTS).realize
    # XLA's figure follows neither values by XLA nor by rules to the smallest pools.
    ways = [functools.partial(stored_of_body, traced), from_rules]
    if by_rules or not has_stored_bodies(traced):
        ways = [from_rules]
    program = with_broadcasts_inside(traced.program)
    search = LoopSearch(
        program,
        lambda program: menu_of(program, target),
        lambda program, is_worth: [
            TightBodies(program, target, options, realize, stored_of, is_worth)
            for stored_of in ways
        ],
        TimeOfMemory(
            traced.backend.seconds_for_temporaries,
            traced.backend.free_temporary_bytes,
            least_fixed_bytes(traced),
            unmodified_bytes,
        ),
        traced.num_devices(),
        traced.compile,
        log,
        seconds_on_device(traced),
        read_program=traced.compile_to_read if traced.backend.reading_options else None,
        is_divided=traced.num_shards() > 1,
    )
    return None if search.is_empty else search


def problem_of(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    tagged: Any,
    placing: Placing,
    works_bytes: int | None = None,
    caller: str = "remat_train_step",
) -> Problem:
    """The problem that a search solves for a step under a budget.

    Arguments:
        tagged: the compiled tagged step; None if XLA refused it.
        works_bytes: a budget that works: the bytes of the step as written; None if XLA
            refused that.
    """
    target = target_of(traced.device())
    if tagged is None:
        stored = from_rules(traced.program)
        fixed_bytes = least_fixed_bytes = predicted_fixed_bytes(traced.program)
    else:
        stored = traced.backend.stored_values(traced.program, tagged)
        fixed_bytes = unplanned_bytes(tagged, stored, of_plans=True)
        least_fixed_bytes = memory_figures(tagged).fixed_bytes
    options = planner_options(planner, target.alignment_bytes)

    forms = Graphs(traced.program, stored, target, options)
    graphs = forms.with_scratch({})
    log(f"graph: {graphs[0]}")
    return Problem(
        graphs,
        options,
        fixed_bytes,
        placing.placement(traced, None if tagged is None else stored),
        traced.compile,
        log,
        forms.with_scratch,
        readable=traced.readable,
        least_fixed_bytes=least_fixed_bytes,
        least_graphs=forms.least(graphs),
        unmodified_bytes=works_bytes,
        caller=caller,
        seconds_of=seconds_on_device(traced),
        options_for_memory=traced.options_for_memory,
    )


def inside_readers_search(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    tagged: Any,
    caller: str,
    seconds: float = math.inf,
) -> tuple[BudgetSearch | None, InsideReaders] | None:
    """The search of the step with cheap values made again inside of late readers; None
    where XLA does not fuse them, or there are none, or the planner is a baseline.

    It takes one compilation. Arguments as of `problem_of`, and:

    Arguments:
        seconds: of the executable of another step under the budget; there is no search if
            this one takes as many before anything is evicted.
    """
    options = planner_options(planner, target_of(traced.device()).alignment_bytes)
    if not traced.backend.fuses_into_readers or options.policy != "search":
        return None
    if tagged is None or traced.num_devices() > 1:
        return None
    stored = traced.backend.stored_values(traced.program, tagged)
    inside = inside_readers(traced.program, stored)
    if inside is None:
        return None
    program = with_inside_readers(traced.program, inside)
    rewritten = dataclasses.replace(traced, program=program)
    log("the step with cheap values made again inside of their readers")
    again = compile_tagged(rewritten)
    if again is None:
        return None, inside
    if seconds < math.inf:
        own = seconds_on_device(rewritten)(again)
        if own is not None and own >= seconds:
            return None, inside
    as_it_is_bytes = memory_figures(again).total_bytes
    problem = problem_of(rewritten, planner, log, again, XLA_PLACES, as_it_is_bytes, caller)
    problem.leaves_unchanged = True
    return BudgetSearch(problem), inside


def layer_search(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    tagged: Any,
) -> LayerSearch | None:
    """The search of the step with its layers made again; None where XLA does not keep them
    in one stretch, or the planner is a baseline.

    Arguments as of `problem_of`.
    """
    target = target_of(traced.device())
    options = planner_options(planner, target.alignment_bytes)
    if not traced.backend.runs_layers_again or options.policy != "search":
        return None
    if tagged is None:
        return None
    stored = traced.backend.stored_values(traced.program, tagged)
    fixed_bytes = unplanned_bytes(tagged, stored, of_plans=True)
    seconds_of = seconds_on_device(traced)

    def measure(inside: InsideReaders, expected_bytes: int) -> Measured:
        program = with_inside_readers(traced.program, inside)
        log("the step with layers made again")
        return as_it_is(
            program,
            *(target, options, expected_bytes),
            *(XLA_PLACES.placement(traced), traced.compile, log),
            seconds_of,
            leaves_unchanged=True,
        )

    return LayerSearch(Layers(traced.program, stored, target), fixed_bytes, measure)
