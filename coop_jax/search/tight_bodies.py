"""Tight bodies: bodies of loops and branches planned for fewer bytes alive at once.

What a loop or a `cond` takes beside its operands is the pool of its body, or of that of its
branches that takes most. A body is a straight line like the step itself: the planner plans
it for a smaller pool, and its fences keep XLA to the plan. Bodies of unpaired loops
(accumulation over microbatches, training steps in a loop, line searches) are planned in the
same way as those of planned pairs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coop_jax.base.options import PlanOptions
from coop_jax.emit.segments import Segment, executions_in
from coop_jax.graph.step_graph import StepGraph
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.loops.bodies import bodies_of, runs_of_bodies, with_bodies
from coop_jax.loops.marks import is_of_group
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import (
    is_planned_quickly,
    least_recomputation,
    smallest_of,
    unconstrained,
)
from coop_jax.plan.unread_executions import seconds_of_read
from coop_jax.search.graphs import graphs_of
from coop_jax.search.placements import Realization
from coop_jax.targets import Target
from coop_jax.trace.program import Program
from coop_jax.trace.shard_types import num_devices_of

Realize = Callable[[StepGraph, AnySchedule], Realization]
StoredOf = Callable[[Program], StoredValues]


@dataclasses.dataclass(frozen=True, eq=False)
class TightBody:
    """A body that was planned for a pool.

    Attributes:
        eqn: its equation, or for the loop of a group, which is ours, that around it.
        graph, schedule, segments: its plan.
        num_runs: how often it runs in a step.
        path: for each equation around it, from the outermost, its place in the program and
            the number of its body that goes on.
    """

    eqn: Any
    graph: StepGraph
    schedule: AnySchedule
    segments: list[Segment]
    num_runs: int
    path: tuple[int, ...]

    @property
    def recompute_seconds(self) -> float:
        """Modelled time in a step of recomputation."""
        executions = executions_in(self.segments)
        return self.num_runs * seconds_of_read(self.graph, self.schedule, executions)


@dataclasses.dataclass(frozen=True, eq=False)
class _Planning:
    """What all bodies are planned with: see `TightBodies`."""

    target: Target
    options: PlanOptions
    realize: Realize
    stored_of: StoredOf

    def least_unconstrained(self, graphs: Sequence[StepGraph]) -> int:
        # Without fences XLA stores the expansions of a body.
        as_it_is = (graph for graph in graphs if not graph.expansions)
        schedules: Iterator[Any] = (unconstrained(g, self.options) for g in as_it_is)
        return min(schedule.statistics.max_live_bytes for schedule in schedules)


class TightBodies:
    """The bodies of a program's loops, at pools that are smaller by a number of bytes.

    The loop with the largest pool decides how much the loops of the step take. So a pool
    is smaller than this by the given bytes; loops with smaller pools stay as they are.

    Arguments:
        program: the program, flat.
        target: the device whose rates are the prices.
        options: of the planner.
        realize: makes a program of a schedule, as the backend requires.
        stored_of: returns the values that XLA stores of a body.
        is_worth: whether it is worth it to plan what takes so many bytes by rules.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        options: PlanOptions,
        realize: Realize,
        stored_of: StoredOf = from_rules,
        is_worth: Callable[[int], bool] = bool,
    ) -> None:
        self._program = program
        planning = _Planning(target, options, realize, stored_of)
        by_rules = dataclasses.replace(planning, stored_of=from_rules)
        self._loops: dict[int, _Equation] = {}
        self._num_devices: dict[int, int] = {}  # That run the loop on shards; else 1.
        for index, eqn in enumerate(program.eqns):
            if not may_be_tight(eqn):
                continue
            equation = _Equation(eqn, (index,), 1, by_rules)
            if is_worth(num_devices_of(eqn) * equation.pool_bytes):
                self._num_devices[index] = num_devices_of(eqn)
                if stored_of is not from_rules:
                    equation = _Equation(eqn, (index,), 1, planning)
                self._loops[index] = equation

    @functools.cached_property
    def largest_pool_bytes(self) -> int:
        """The pool of the loop that takes most, as it is; 0 without loops."""
        return max(map(self._pool_bytes, self._loops), default=0)

    def can_save_quickly(self, saved_bytes: int) -> bool:
        """Whether little effort shows that the loops can take so many bytes less, in a
        small part of the time that `most_saved_bytes` takes."""
        excess = self._excess(saved_bytes)
        return all(self._loops[at].can_take_less(less) for at, less in excess.items())

    def _pool_bytes(self, index: int) -> int:
        """The pool of a loop as it is, on all devices together."""
        return self._num_devices[index] * self._loops[index].pool_bytes

    @functools.cached_property
    def most_saved_bytes(self) -> int:
        """Bytes by which the largest pool can be smaller."""
        least = (
            self._num_devices[index] * body.smallest_bytes
            for index, body in self._loops.items()
        )
        return self.largest_pool_bytes - max(least, default=0)

    def saving(self, saved_bytes: int) -> tuple[Program, tuple[TightBody, ...], int]:
        """The program whose loops take so many bytes less, or as few as they can.

        Returns:
            The program, the bodies that are planned in it, and the bytes that its loops
            take less.
        """
        eqns, planned = list(self._program.eqns), []
        pools = {index: self._pool_bytes(index) for index in self._loops}
        for index, excess in self._excess(saved_bytes).items():
            eqns[index], more, pool_bytes = self._loops[index].tightened(excess)
            pools[index] = self._num_devices[index] * pool_bytes
            planned += more
        program = dataclasses.replace(self._program, eqns=tuple(eqns))
        largest_bytes = max(pools.values(), default=0)
        return program, tuple(planned), self.largest_pool_bytes - largest_bytes

    def places(self, saved_bytes: int) -> tuple[int, ...]:
        """The places of the loops that `saving` changes."""
        return tuple(self._excess(saved_bytes))

    def _excess(self, saved_bytes: int) -> dict[int, int]:
        """By place, the bytes that a loop's pool is too large by, on each of the devices
        that run it on shards."""
        limit = self.largest_pool_bytes - saved_bytes
        excess = {
            index: -((limit - self._pool_bytes(index)) // self._num_devices[index])
            for index in self._loops
        }
        return {index: size for index, size in excess.items() if size > 0}


def may_be_tight(eqn: Any) -> bool:
    """Whether the equation has a body that may be planned as a straight line."""
    bodies = bodies_of(eqn)
    return any(len(b.eqns) > 1 or any(map(may_be_tight, b.eqns)) for b in bodies)


def named_loop(eqn: Any, around: Any) -> Any:
    """The loop that reports name: the equation's, or for that of a group the one around it.

    Arguments:
        around: the loop that has it in its body; None: there is none.
    """
    return around if is_of_group(eqn) and around is not None else eqn


class _Equation:
    """An equation with bodies, and what is planned of each."""

    def __init__(
        self,
        eqn: Any,
        path: tuple[int, ...],
        num_runs: int,
        planning: _Planning,
        around: Any = None,
    ) -> None:
        self._eqn = eqn
        named, runs_inside = named_loop(eqn, around), num_runs * runs_of_bodies(eqn)
        self._bodies = [
            _Body(body, named, (*path, number), runs_inside, planning)
            for number, body in enumerate(bodies_of(eqn))
        ]

    @functools.cached_property
    def pool_bytes(self) -> int:
        """Bytes alive at once in the body that takes most, as it is."""
        return max(body.pool_bytes for body in self._bodies)

    @functools.cached_property
    def smallest_bytes(self) -> int:
        """The least such bytes that can be planned."""
        return max(body.smallest_bytes for body in self._bodies)

    def can_take_less(self, excess_bytes: int) -> bool:
        """Whether little effort shows that so many bytes less can be planned."""
        room = self.pool_bytes - excess_bytes
        return all(body.can_take_less(body.pool_bytes - room) for body in self._bodies)

    def tightened(self, excess_bytes: int) -> tuple[Any, list[TightBody], int]:
        """The equation with a pool that is smaller by so many bytes, or as small as it can
        be; its bodies with smaller pools stay as they are.

        Returns:
            The equation, the planned bodies, and the pool's bytes.
        """
        room = self.pool_bytes - excess_bytes
        programs, planned, pools = [], [], []
        for body in self._bodies:
            program, more, pool_bytes = body.tightened(max(0, body.pool_bytes - room))
            programs.append(program)
            planned += more
            pools.append(pool_bytes)
        return with_bodies(self._eqn, programs), planned, max(pools)


class _Body:
    """One body of an equation, with those of the equations in it."""

    def __init__(
        self,
        program: Program,
        named: Any,
        path: tuple[int, ...],
        num_runs: int,
        planning: _Planning,
    ) -> None:
        self._program, self._named, self._path = program, named, path
        self._num_runs, self._planning = num_runs, planning
        self._tightened: dict[int, tuple[Program, list[TightBody], int]] = {}
        self._graphs_as_it_is: dict[tuple[int, ...], list[StepGraph]] = {}
        self._inner = {
            index: _Equation(inner, (*path, index), num_runs, planning, named)
            for index, inner in enumerate(program.eqns)
            if may_be_tight(inner)
        }

    @functools.cached_property
    def pool_bytes(self) -> int:
        """Bytes alive at once in a run of the body beside its operands, as it is."""
        scratch = {index: inner.pool_bytes for index, inner in self._inner.items()}
        return self._planning.least_unconstrained(self._graphs(self._program, scratch))

    @functools.cached_property
    def smallest_bytes(self) -> int:
        """The least such bytes that can be planned."""
        scratch = {index: inner.smallest_bytes for index, inner in self._inner.items()}
        graphs = self._graphs(self._program, scratch)
        return smallest_of(graphs, self._planning.options)[1].pool_bytes

    def can_take_less(self, excess_bytes: int) -> bool:
        """Whether little effort shows that so many bytes less can be planned; those inside
        of it are then as `tightened` makes them, or as they are."""
        if excess_bytes <= 0:
            return True
        alignment = self._planning.target.alignment_bytes
        scratch = {}
        for index, inner in self._inner.items():
            less = excess_bytes if inner.can_take_less(excess_bytes) else 0
            scratch[index] = (inner.pool_bytes - less) // alignment * alignment
        graphs = self._graphs(self._program, scratch)
        room = self.pool_bytes - excess_bytes
        return is_planned_quickly(graphs, self._planning.options, room)

    def tightened(self, excess_bytes: int) -> tuple[Program, list[TightBody], int]:
        """The body with a pool that is smaller by so many bytes, or as small as it can be;
        returns as `_Equation.tightened`. Made once: other bodies of the program may differ
        between two of its plans."""
        if not excess_bytes:
            return self._program, [], self.pool_bytes
        if excess_bytes not in self._tightened:
            self._tightened[excess_bytes] = self._planned(excess_bytes)
        return self._tightened[excess_bytes]

    def _planned(self, excess_bytes: int) -> tuple[Program, list[TightBody], int]:
        planning = self._planning
        eqns, planned, scratch = list(self._program.eqns), [], {}
        for index, inner in self._inner.items():
            eqns[index], more, scratch[index] = inner.tightened(excess_bytes)
            planned += more
        program = self._program
        if self._inner:
            program = dataclasses.replace(program, eqns=tuple(eqns))
        graphs = self._graphs(program, scratch)
        room = self.pool_bytes - excess_bytes
        as_it_is = planning.least_unconstrained(graphs)
        if as_it_is <= room:
            return program, planned, as_it_is
        found = least_recomputation(graphs, planning.options, room)
        if found is None and room < self.smallest_bytes:
            found = least_recomputation(graphs, planning.options, self.smallest_bytes)
        if found is None:
            graph, smallest = smallest_of(graphs, planning.options)
            found = graph, smallest.schedule
        graph, schedule = found
        made = planning.realize(graph, schedule)
        body = self._named, graph, schedule, made.segments, self._num_runs, self._path
        planned.append(TightBody(*body))
        return made.program, planned, schedule.statistics.max_live_bytes

    def _graphs(self, program: Program, scratch: dict[int, int]) -> list[StepGraph]:
        """The graphs of the body, or of one that differs from it in its inner bodies."""
        if program is not self._program:
            return self._new_graphs(program, scratch)
        key = tuple(scratch.values())
        if key not in self._graphs_as_it_is:
            self._graphs_as_it_is[key] = self._new_graphs(program, scratch)
        return self._graphs_as_it_is[key]

    def _new_graphs(self, program: Program, scratch: dict[int, int]) -> list[StepGraph]:
        workspace_bytes = self._stored.workspace_bytes | scratch
        stored = dataclasses.replace(self._stored, workspace_bytes=workspace_bytes)
        return graphs_of(program, stored, self._planning.target, self._planning.options)

    @functools.cached_property
    def _stored(self) -> StoredValues:
        return self._planning.stored_of(self._program)
