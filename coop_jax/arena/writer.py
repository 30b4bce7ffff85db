"""Writer: a program whose boundaries are exchanges with an arena."""

from __future__ import annotations

from typing import Any

from coop_jax.arena.exchange import (
    Exchange,
    arena_aval,
    empty_arena_equation,
    exchange_equation,
)
from coop_jax.arena.layout import ArenaPlan, Stay
from coop_jax.base import _compat
from coop_jax.emit.hints import FenceHints
from coop_jax.emit.rewrite import Writer, rewrite, written
from coop_jax.emit.segments import Segment
from coop_jax.graph.step_graph import StepGraph
from coop_jax.trace.program import Program


def rewrite_with_arena(
    graph: StepGraph,
    segments: list[Segment],
    hints: FenceHints,
    arena: ArenaPlan,
    exchange_log: int | None,
) -> Program:
    """The program of `emit.rewrite`, with exchanges for fences.

    Arguments:
        arena: the values in the arena; the first equation makes the arena.
        exchange_log: number of the log of checked exchanges; None: they are not checked.
    """
    if not arena.stays:
        return rewrite(graph, segments, hints)
    return written(segments, _ArenaWriter(graph, hints, arena, exchange_log))


class _ArenaWriter(Writer):
    """A writer with exchanges for fences."""

    def __init__(
        self,
        graph: StepGraph,
        hints: FenceHints,
        arena: ArenaPlan,
        exchange_log: int | None,
    ) -> None:
        super().__init__(graph, hints)
        self._plan = arena
        self._exchange_log = exchange_log
        self._arena = _compat.new_var(arena_aval(arena.arena_bytes))
        self.eqns.append(empty_arena_equation(self._arena))

    def _pass(self, segment: Segment, before: list[Any], after: list[Any]) -> None:
        """Write a boundary: an exchange with the arena, and a fence."""
        number = self._number
        stores, loads = self._plan.stored_at(number), self._plan.loaded_at(number)
        if not stores and not loads:
            super()._pass(segment, before, after)
            return
        what = Exchange(
            boundary=number,
            stores=tuple(stores),
            loads=tuple(loads),
            is_first=number == self._plan.first_boundary,
            is_last=number == self._plan.last_boundary,
            exchange_log=self._exchange_log,
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
        if self._exchange_log is None:
            return ()
        made_by = {t: k for k, op in enumerate(self.graph.operations) for t in op.outputs}
        return tuple(self.graph.describe(made_by[stay.tensor]) for stay in stays)
