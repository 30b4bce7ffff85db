"""Graphs: a step in every form that it is planned in, and those that bound all plans."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from coop_jax.graph.expansions import without_expansions
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.graph.wide_fusions import with_partial_results
from coop_jax.plan.least_possible import least_pool_bytes
from coop_jax.plan.planner import PlanOptions
from coop_jax.targets import Target
from coop_jax.trace.program import Program


def graphs_of(
    program: Program,
    stored: StoredValues,
    target: Target,
    options: PlanOptions,
) -> list[StepGraph]:
    """The step in XLA's order and, for the planner that compares plans, in another; both
    also with partial results of wide fusions stored, and without expansions, where plans
    of the others are bound to need a third more at least: these take time, and to plan all
    as well."""
    of_stored = functools.partial(build_graph, program, target=target)
    graphs = [of_stored(stored)]
    if options.policy != "search":
        return graphs
    least_bytes = least_pool_bytes(graphs, options)  # The same in every order.
    graphs.append(of_stored(stored, early=True))
    for change in (with_partial_results, without_expansions):
        other = change(program, stored)
        if other is stored:
            continue
        more = of_stored(other)
        if 4 * least_pool_bytes([more], options) < 3 * least_bytes:
            graphs += [more, of_stored(other, early=True)]
            least_bytes = min(least_bytes, least_pool_bytes([more], options))
    return graphs


def least_graphs_of(
    program: Program, stored: StoredValues, target: Target, graphs: Sequence[StepGraph]
) -> Sequence[StepGraph]:
    """The graphs that bound the bytes of all plans: those that are planned, and the step
    without the values that XLA need not store."""
    fewer = without_expansions(program, stored)
    return graphs if fewer is stored else [*graphs, build_graph(program, fewer, target)]
