"""Rewrite: a flat program and a schedule to a new program with fences.

Every execution of the schedule evaluates its operation's equations again, reading the
present version of each stored value; unstored values live only inside one segment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from coop_jax import _compat
from coop_jax._compat import DropVar, Literal
from coop_jax.after import after_equation
from coop_jax.arena import ArenaPlan, Stay
from coop_jax.constants import is_zero
from coop_jax.exchange import (
    Exchange,
    arena_aval,
    empty_arena_equation,
    exchange_equation,
)
from coop_jax.graph import StepGraph
from coop_jax.merge import literal_key
from coop_jax.placement import fence_equation
from coop_jax.program import Program
from coop_jax.segments import Execution, Segment

RECOMPUTE_SCOPE = "recompute"


def rewrite(
    graph: StepGraph,
    segments: list[Segment],
    shared_zeros: Collection[int] = (),
    arena: ArenaPlan | None = None,
    books: int | None = None,
    orders_updates: bool = False,
) -> Program:
    """The program that executes the segments in their order.

    It computes the same outputs from the same inputs. Recomputed equations carry the
    name scope `recompute` around their own, so that profilers show them.

    Arguments:
        graph: what the segments were planned on.
        segments: from `segments.cut`.
        shared_zeros: equations whose zeros pass the fence of their segment, from
            `constants.shared_zeros`.
        arena: what waits in the arena: then the boundaries are exchanges, and the first
            equation makes the arena.
        books: where checked exchanges keep their books; None: they are not checked.
        orders_updates: whether what takes over an input's memory waits for what reads
            that input in the same segment. XLA knows no order between the two, and where
            it runs the update first, the new value gets memory of its own until the end
            of the step.
    """
    zeros = frozenset(shared_zeros)
    if arena is not None and arena.stays:
        writer = _ArenaWriter(graph, zeros, orders_updates, arena, books)
    else:
        writer = _Writer(graph, zeros, orders_updates)
    for number, segment in enumerate(segments):
        writer.fence(segment, number)
        for execution in segment.executions:
            writer.execute(execution)
    program = graph.program
    outvars = tuple(
        v if isinstance(v, Literal) else writer.version[graph.index_of[v]]
        for v in program.outvars
    )
    return dataclasses.replace(program, eqns=tuple(writer.eqns), outvars=outvars)


class _Writer:
    """The equations written so far and the present version of every tensor."""

    def __init__(
        self, graph: StepGraph, shared_zeros: frozenset[int], orders_updates: bool
    ) -> None:
        self.graph = graph
        self.eqns: list[Any] = []
        self.version = dict(enumerate(graph.tensors[: graph.num_inputs]))
        self._shared_zeros = shared_zeros
        # Unstored values and zeros of the present segment.
        self._local: dict[Any, Any] = {}
        self._zeros: dict[Any, Any] = {}
        self._overwritten_by = graph.overwritten_by if orders_updates else {}
        # What was made in the present segment from an input that is overwritten later.
        self._made_from: dict[int, list[Any]] = {
            old: [] for olds in self._overwritten_by.values() for old in olds
        }

    def fence(self, segment: Segment, number: int) -> None:
        self._local = {}
        for made in self._made_from.values():
            made.clear()
        zeros = self._zeros_of(segment)
        before = [*(self.version[t] for t in segment.fenced), *zeros.values()]
        after = [_compat.new_var(v.aval) for v in before]
        self._pass(before, after, number)
        self.version.update(zip(segment.fenced, after, strict=False))
        self._zeros = dict(zip(zeros, after[len(segment.fenced) :], strict=True))

    def _pass(self, before: list[Any], after: list[Any], number: int) -> None:
        """The boundary itself: values that go in and come out again."""
        if before:
            self.eqns.append(fence_equation(before, after, number))

    def _zeros_of(self, segment: Segment) -> dict[Any, Literal]:
        """The zeros that have to pass its fence, one of each type."""
        return {
            literal_key(atom): atom
            for execution in segment.executions
            for index in self.graph.operations[execution.operation].equations
            if index in self._shared_zeros
            for atom in self.graph.program.eqns[index].invars
            if is_zero(atom)
        }

    def execute(self, execution: Execution) -> None:
        operation = self.graph.operations[execution.operation]
        for old in self._overwritten_by.get(execution.operation, ()):
            self._wait_for_readers(old)
        for index in operation.equations[:-1]:
            # A cone shares what another operation of this segment already evaluated.
            outvars = self.graph.program.eqns[index].outvars
            if not all(v in self._local for v in outvars if not isinstance(v, DropVar)):
                self._local.update(self._write(index, execution.is_recompute))
        made = self._write(operation.anchor, execution.is_recompute)
        for tensor in execution.makes:
            self.version[tensor] = made[self.graph.tensors[tensor]]
        for tensor in operation.inputs:
            if tensor in self._made_from:
                self._made_from[tensor] += [self.version[t] for t in execution.makes[:1]]

    def _wait_for_readers(self, old: int) -> None:
        """The input again, once everything that this segment made from it is there."""
        made = self._made_from[old]
        if made:
            later = _compat.new_var(self.version[old].aval)
            self.eqns.append(after_equation(self.version[old], later, made))
            self.version[old] = later

    def _write(self, index: int, is_recompute: bool) -> dict[Any, Any]:
        eqn = self.graph.program.eqns[index]
        renamed = {
            v: _compat.new_var(v.aval) for v in eqn.outvars if not isinstance(v, DropVar)
        }
        zeros = self._zeros if index in self._shared_zeros else {}
        eqn = eqn.replace(
            invars=[self._read(v, zeros) for v in eqn.invars],
            outvars=[renamed.get(v, v) for v in eqn.outvars],
        )
        if is_recompute:
            eqn = _compat.with_name_scope(eqn, RECOMPUTE_SCOPE)
        self.eqns.append(eqn)
        return renamed

    def _read(self, atom: Any, zeros: dict[Any, Any]) -> Any:
        if isinstance(atom, Literal):
            return zeros.get(literal_key(atom), atom) if zeros else atom
        tensor = self.graph.index_of.get(atom)
        return self._local[atom] if tensor is None else self.version[tensor]


class _ArenaWriter(_Writer):
    """The same with exchanges for fences."""

    def __init__(
        self,
        graph: StepGraph,
        shared_zeros: frozenset[int],
        orders_updates: bool,
        arena: ArenaPlan,
        books: int | None,
    ) -> None:
        super().__init__(graph, shared_zeros, orders_updates)
        self._plan = arena
        self._books = books
        self._arena = _compat.new_var(arena_aval(arena.arena_bytes))
        self.eqns.append(empty_arena_equation(self._arena))

    def _pass(self, before: list[Any], after: list[Any], number: int) -> None:
        stores, loads = self._plan.stored_at(number), self._plan.loaded_at(number)
        if not stores and not loads:
            super()._pass(before, after, number)
            return
        what = Exchange(
            boundary=number,
            stores=tuple(stores),
            loads=tuple(loads),
            is_first=number == self._plan.first_boundary,
            is_last=number == self._plan.last_boundary,
            books=self._books,
            names=self._names(stores + loads),
        )
        stored = [self.version[stay.tensor] for stay in stores]
        loaded = [_compat.new_var(self.version[stay.tensor].aval) for stay in loads]
        arena = _compat.new_var(self._arena.aval)
        self.eqns.append(
            exchange_equation((self._arena, arena), before, after, stored, loaded, what)
        )
        self._arena = arena
        self.version.update(zip((s.tensor for s in loads), loaded, strict=True))

    def _names(self, stays: list[Stay]) -> tuple[str, ...]:
        if self._books is None:
            return ()
        made_by = {t: k for k, op in enumerate(self.graph.operations) for t in op.outputs}
        return tuple(self.graph.describe(made_by[stay.tensor]) for stay in stays)
