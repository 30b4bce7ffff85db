"""Graphs: a step in every form that it is planned in, and those that bound all plans."""

from __future__ import annotations

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
    orders = (False, True) if options.policy == "search" else (False,)

    def of(stored: StoredValues) -> list[StepGraph]:
        return [build_graph(program, stored, target, early=e) for e in orders]

    graphs = of(stored)
    if options.policy != "search":
        return graphs
    for change in (with_partial_results, without_expansions):
        other = change(program, stored)
        more = [] if other is stored else of(other)
        if more and 4 * least_pool_bytes(more, options) < 3 * least_pool_bytes(
            graphs, options
        ):
            graphs += more
    return graphs


def least_graphs_of(
    program: Program, stored: StoredValues, target: Target, graphs: Sequence[StepGraph]
) -> Sequence[StepGraph]:
    """The graphs that bound the bytes of all plans: those that are planned, and the step
    without the values that XLA need not store."""
    fewer = without_expansions(program, stored)
    return graphs if fewer is stored else [*graphs, build_graph(program, fewer, target)]
