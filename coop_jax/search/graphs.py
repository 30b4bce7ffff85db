"""Graphs: a step in every form that it is planned in, and those that bound all plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coop_jax.graph.expansions import without_expansions
from coop_jax.graph.run_once import keeping_what_runs_once
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.graph.taken_apart import without_taken_apart
from coop_jax.graph.wide_fusions import with_partial_results
from coop_jax.plan.least_possible import least_pool_bytes
from coop_jax.plan.planner import PlanOptions
from coop_jax.targets import Target
from coop_jax.trace.program import Program

_CHANGES = (with_partial_results, without_expansions)
_FEWEST = len(_CHANGES)


class Graphs:
    """The graphs of a step, each built once: scratch that is learnt of a compiled plan
    changes neither what is stored nor any order.

    Arguments:
        program: the step.
        stored: what XLA stores of it.
        target: the device whose rates give every operation its seconds.
        options: of the planner.
    """

    def __init__(
        self, program: Program, stored: StoredValues, target: Target, options: PlanOptions
    ) -> None:
        self._program, self._target, self._options = program, target, options
        self._stored = stored
        self._changed: dict[int, StoredValues] = {}
        self._built: dict[tuple[int, bool], StepGraph] = {}
        self._kept: dict[StepGraph, StepGraph] = {}

    def with_scratch(self, scratch_bytes: Mapping[int, int]) -> list[StepGraph]:
        """The step in XLA's order and, for the planner that compares plans, in another;
        both also with partial results of wide fusions stored, and without expansions,
        where plans of the others are bound to need a third more at least: these take
        time, and to plan all as well. Each of them also with what runs once kept.

        Arguments:
            scratch_bytes: the least scratch of operations, by the index of an equation.
        """

        def built(stored: StoredValues, *, early: bool = False) -> StepGraph:
            graph = self._graph(stored, early=early)
            return graph.with_stored_scratch(scratch_bytes) if scratch_bytes else graph

        graphs = [built(self._stored)]
        if self._options.policy != "search":
            return graphs
        least_bytes = least_pool_bytes(graphs, self._options)  # The same in every order.
        graphs.append(built(self._stored, early=True))
        for number in range(len(_CHANGES)):
            other = self._with_change(number)
            if other is self._stored:
                continue
            more = built(other)
            if 4 * least_pool_bytes([more], self._options) < 3 * least_bytes:
                graphs += [more, built(other, early=True)]
                least_bytes = min(least_bytes, least_pool_bytes([more], self._options))
        return [*graphs, *(k for g in graphs if (k := self._keeping(g)) is not g)]

    def _keeping(self, graph: StepGraph) -> StepGraph:
        """The graph with what runs once kept: the same object each time."""
        if graph not in self._kept:
            self._kept[graph] = keeping_what_runs_once(graph)
        return self._kept[graph]

    def least(self, graphs: Sequence[StepGraph]) -> Sequence[StepGraph]:
        """The graphs that bound the bytes of all plans: those that are planned, and the
        step without the values that XLA need not store."""
        fewer = self._with_change(_FEWEST)
        return graphs if fewer is self._stored else [*graphs, self._graph(fewer)]

    def _with_change(self, number: int) -> StoredValues:
        """The stored values after a change; the same object if there is none."""
        if number not in self._changed:
            self._changed[number] = self._changed_stored(number)
        return self._changed[number]

    def _changed_stored(self, number: int) -> StoredValues:
        if number < _FEWEST:
            return _CHANGES[number](self._program, self._stored)
        fewer = self._with_change(_CHANGES.index(without_expansions))
        return without_taken_apart(self._program, fewer)

    def _graph(self, stored: StoredValues, *, early: bool = False) -> StepGraph:
        key = id(stored), early  # All of them live as long as this object.
        if key not in self._built:
            self._built[key] = build_graph(self._program, stored, self._target, early=early)
        return self._built[key]


def graphs_of(
    program: Program, stored: StoredValues, target: Target, options: PlanOptions
) -> list[StepGraph]:
    """The graphs of `Graphs`, without scratch that was learnt."""
    return Graphs(program, stored, target, options).with_scratch({})
