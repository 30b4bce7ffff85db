"""Rewrite: from a flat program and a schedule to a new program with fences.

Every execution of the schedule evaluates its operation's equations, reading the present
version of each stored value; the live range of an unstored value is inside one segment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.emit.anti_dependencies import Readers
from coop_jax.emit.fence import fence_equation
from coop_jax.emit.hints import NO_HINTS, FenceHints
from coop_jax.emit.narrowed import kept_narrowed, narrowing_equation, widening_equation
from coop_jax.emit.order_after import after_equation
from coop_jax.emit.segments import Segment
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import Execution
from coop_jax.trace.cse import literal_key
from coop_jax.trace.program import Program, is_zero, reads, writes

RECOMPUTE_SCOPE = "recompute"
EXECUTION_SCOPE = "execution"


def rewrite(
    graph: StepGraph, segments: list[Segment], hints: FenceHints = NO_HINTS
) -> Program:
    """The program that executes the segments in their order.

    It computes the same outputs from the same inputs. Recomputed equations carry the
    name scope `recompute` around their own, so that profilers show them. The innermost
    scope of every equation is `execution` with the number of its execution in the plan,
    by which `search.live_bytes_feedback` identifies the parts of the compiled step.

    Arguments:
        graph: the graph that the segments were planned on.
        segments: from `segments.cut`.
        hints: requirements of the backend on the fences.
    """
    kept = kept_narrowed(graph, segments, hints.narrowed)
    return written(segments, Writer(graph, hints, kept))


def written(segments: list[Segment], writer: Writer) -> Program:
    """The program that a writer makes of the segments, with the results' types kept."""
    for number, segment in enumerate(segments):
        writer.fence(segment, number)
        for execution in segment.executions:
            writer.execute(execution)
    program = writer.graph.program
    outvars = tuple(
        v if isinstance(v, Literal) else writer.version[writer.graph.index_of[v]]
        for v in program.outvars
    )
    types = [(v.aval, new.aval) for v, new in zip(program.outvars, outvars, strict=True)]
    assert all(old == new for old, new in types), "results keep their types"
    return dataclasses.replace(program, eqns=tuple(writer.eqns), outvars=outvars)


class Writer:
    """The equations written so far and the present version of every tensor.

    Arguments:
        graph: the graph that the segments were planned on.
        hints: requirements of the backend on the fences.
        kept_narrowed: pairs (execution, tensor made there) of bfloat16-narrowed values.
    """

    def __init__(
        self,
        graph: StepGraph,
        hints: FenceHints,
        kept_narrowed: frozenset[tuple[int, int]] = frozenset(),
    ) -> None:
        self.graph = graph
        self._hints = hints
        self._kept_narrowed = kept_narrowed
        self._narrowed: set[int] = set()  # Tensors whose present version is narrowed.
        self.eqns: list[Any] = []
        self.version = dict(enumerate(graph.tensors[: graph.num_inputs]))
        self._num_executed = 0
        # Of the present segment: its number, unstored values, values in float32, scalars.
        self._number = 0
        self._local: dict[Any, Any] = {}
        self._whole: dict[int, Any] = {}
        self._scalars: dict[Any, Any] = {}
        self._readers = Readers(graph)

    def fence(self, segment: Segment, number: int) -> None:
        """Pass tensors through a fence: later readers read its results."""
        self._number = number
        self._local, self._whole = {}, {}
        self._readers.begin_segment()
        scalars = self._scalars_of(segment)
        before = [*(self.version[t] for t in segment.fenced), *scalars.values()]
        after = [_compat.new_var(v.aval) for v in before]
        self._pass(segment, before, after)
        self.version.update(zip(segment.fenced, after, strict=False))
        self._scalars = dict(zip(scalars, after[len(segment.fenced) :], strict=True))

    def _pass(self, segment: Segment, before: list[Any], after: list[Any]) -> None:
        """Append the boundary's equation; `after` are the results for `before`."""
        if before:
            layouts = [
                self._hints.layouts.get(self.graph.tensors[t]) for t in segment.fenced
            ]
            kept = layouts if any(layouts) else []
            self.eqns.append(fence_equation(before, after, self._number, kept))

    def _fence_alone(self, tensors: Sequence[int]) -> None:
        """Append a fence for these tensors: each is one value from here on, whichever of
        the equations that computed it XLA merges."""
        before = [self.version[t] for t in tensors]
        after = [_compat.new_var(v.aval) for v in before]
        self.eqns.append(fence_equation(before, after, self._number))
        self.version.update(zip(tensors, after, strict=True))

    def _scalars_of(self, segment: Segment) -> dict[Any, Literal]:
        """The constants that have to pass the segment's fence, by key: some zeros, and all
        scalars of expansions, as XLA stores what one is broadcast to for two fusions."""
        return {
            literal_key(atom): atom
            for execution in segment.executions
            for index in self.graph.operations[execution.operation].equations
            if self._passes_scalars(execution.operation, index)
            for atom in self.graph.program.eqns[index].invars
            if is_zero(atom) or (_is_scalar(atom) and index not in self._hints.shared_zeros)
        }

    def _passes_scalars(self, operation: int, index: int) -> bool:
        hints = self._hints
        is_shared = index in hints.shared_zeros or index in hints.shared_constants
        return is_shared or operation in self.graph.expansions

    def execute(self, execution: Execution) -> None:
        """Write the equations of an execution, renamed for a recomputation."""
        operation = self.graph.operations[execution.operation]
        for old in self.graph.overwritten_by.get(execution.operation, ()):
            others = self._readers.to_wait_for(old, execution.operation)
            if others:
                later = _compat.new_var(self.version[old].aval)
                self.eqns.append(after_equation(self.version[old], later, others))
                self.version[old] = later
        for index in operation.equations[:-1]:
            # Shared with another operation of this segment that already evaluated it, but
            # for what may be of other versions of its operands.
            outvars = writes(self.graph.program.eqns[index])
            if not all(v in self._local for v in outvars) or operation.again:
                self._local.update(self._write(index, execution))
        made = self._write(operation.anchor, execution)
        for tensor in execution.makes:
            self.version[tensor] = self._kept(tensor, made[self.graph.tensors[tensor]])
        is_partial = execution.operation in self.graph.partial_results
        if is_partial or operation.anchor in self._hints.fenced_alone:
            self._fence_alone(execution.makes)
        self._readers.executed(execution, self.version)
        self._num_executed += 1

    def _write(self, index: int, execution: Execution) -> dict[Any, Any]:
        """Write one equation of present values; returns its results by variable."""
        eqn = self.graph.program.eqns[index]
        again = self.graph.operations[execution.operation].again
        self._widen((v for v in reads(eqn) if v not in again), eqn)
        renamed = {
            v: _compat.new_var(v.aval) for v in eqn.outvars if not isinstance(v, DropVar)
        }
        passed = self._passes_scalars(execution.operation, index)
        scalars = self._scalars if passed else {}
        eqn = eqn.replace(
            invars=[self._read(v, scalars, again) for v in eqn.invars],
            outvars=[renamed.get(v, v) for v in eqn.outvars],
        )
        scope = f"{EXECUTION_SCOPE}{self._num_executed}"
        eqn = _compat.with_inner_name_scope(eqn, scope)
        if execution.is_recompute:
            eqn = _compat.with_name_scope(eqn, RECOMPUTE_SCOPE)
        self.eqns.append(eqn)
        return renamed

    def _read(self, atom: Any, scalars: dict[Any, Any], again: frozenset[Any]) -> Any:
        if isinstance(atom, Literal):
            return scalars.get(literal_key(atom), atom) if scalars else atom
        tensor = self.graph.index_of.get(atom)
        if tensor is None or atom in again:
            return self._local[atom]
        return self._whole.get(tensor, self.version[tensor])

    def _kept(self, tensor: int, made: Any) -> Any:
        """The variable that later segments read for a value that was just computed:
        itself, or narrowed to bfloat16; the present segment reads it in float32."""
        if (self._num_executed, tensor) not in self._kept_narrowed:
            self._narrowed.discard(tensor)
            return made
        self._narrowed.add(tensor)
        self._whole[tensor] = made
        self.eqns.append(narrowing_equation(made, self.eqns[-1]))
        return self.eqns[-1].outvars[0]

    def _widen(self, values: Iterable[Any], eqn: Any) -> None:
        """Widen the narrowed ones of values that an equation reads of other segments."""
        for v in values:
            tensor = self.graph.index_of.get(v)
            if tensor in self._narrowed and tensor not in self._whole:
                self.eqns.append(widening_equation(self.version[tensor], eqn))
                self._whole[tensor] = self.eqns[-1].outvars[0]


def _is_scalar(atom: Any) -> bool:
    return isinstance(atom, Literal) and np.shape(atom.val) == ()
