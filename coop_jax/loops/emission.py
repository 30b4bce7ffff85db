"""Emission: planned pairs of loops as a program.

Each part of a pair is a loop of its own. A loop that has all iterations to itself reads and
writes stacks as any `scan` does. Several read the whole stacks at an offset, and write
whole stacks in place, so that no stack is sliced or concatenated: XLA then needs for them
what it needs for one.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.base._compat import DropVar, Literal
from coop_jax.loops.bodies import bodies_of, with_bodies
from coop_jax.loops.marks import planned_loops
from coop_jax.loops.part_body import (
    PartBody,
    backward_body,
    forward_body,
)
from coop_jax.loops.parts import PlannedPair
from coop_jax.loops.run_parts import run_parts
from coop_jax.trace.cse import without_dead
from coop_jax.trace.inline import inlined
from coop_jax.trace.program import Program

Inline = Callable[[Callable[..., Any], Sequence[Any]], list[Any]]
"""Puts a function of operands into the program; returns its results."""
Emit = Callable[[Any, Inline], dict[Any, Any]]
"""Puts what replaces an equation into the program; returns what replaces its results."""


def with_planned_pairs(
    program: Program, planned: Sequence[PlannedPair], *, are_marked: bool = True
) -> Program:
    """The program with pairs of loops in place of those that were planned.

    Arguments:
        program, planned: the program, and the plans of its pairs.
        are_marked: whether the new loops are said to be planned (`loops.marks`); else they
            may be planned once more.
    """
    emitters: dict[int, Emit] = {}
    inside: dict[int, list[PlannedPair]] = collections.defaultdict(list)
    for pair in planned:
        if pair.path:
            inside[pair.path[0]].append(pair)
            continue
        emitter = _Emitter(pair, are_marked=are_marked)
        emitters[pair.iteration.pair.forward_index] = emitter.forward
        emitters[pair.iteration.pair.backward_index] = emitter.backward
    eqns: list[Any] = []
    constants = list(zip(program.constvars, program.consts, strict=True))
    renamed: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else renamed.get(atom, atom)

    for index, eqn in enumerate(program.eqns):
        eqn = eqn.replace(invars=[read(v) for v in eqn.invars])
        if index not in emitters:
            eqns.append(_with_pairs_inside(eqn, inside[index]) if index in inside else eqn)
            continue

        def inline(run: Callable, operands: Sequence[Any], like: Any = eqn) -> list[Any]:
            more, captured, results = inlined(run, operands, like)
            eqns.extend(more)
            constants.extend(captured)
            return results

        renamed |= emitters[index](eqn, inline)
    outvars = [read(v) for v in program.outvars]
    return dataclasses.replace(
        program,
        constvars=tuple(v for v, _ in constants),
        consts=tuple(c for _, c in constants),
        outvars=tuple(outvars),
        eqns=tuple(without_dead(eqns, outvars)),
    )


def _with_pairs_inside(eqn: Any, planned: Sequence[PlannedPair]) -> Any:
    """An equation whose bodies have planned pairs."""
    bodies = bodies_of(eqn)
    for number, body in enumerate(bodies):
        inside = [
            dataclasses.replace(pair, path=pair.path[2:])
            for pair in planned
            if pair.path[1] == number
        ]
        if inside:
            bodies[number] = with_planned_pairs(body, inside)
    return with_bodies(eqn, bodies)


class _Emitter:
    """The two loops of a planned pair; `forward` is called before `backward`."""

    def __init__(self, planned: PlannedPair, *, are_marked: bool) -> None:
        self._are_marked = are_marked
        self._iteration = planned.iteration
        self._pair = planned.iteration.pair
        self._parts = planned.parts
        self._given: dict[Any, Any] = {}  # by variable of a body: operand or whole stack
        self._own: list[list[Any]] = []  # by part: the stacks of what it keeps

    def forward(self, eqn: Any, inline: Inline) -> dict[Any, Any]:
        """Puts the forward loops in; returns the values that replace the results."""
        loop = self._pair.forward
        inputs = [*loop.body_consts, *loop.body_carry, *loop.body_entries]
        self._given.update(zip(inputs, eqn.invars, strict=True))
        bodies = [forward_body(self._iteration, part) for part in self._parts]
        results = self._put(loop, bodies, [[] for _ in self._parts], inline)
        carried, results = results[: loop.num_carry], results[loop.num_carry :]
        written = [
            number
            for number, stack in enumerate(loop.stacks_written)
            if number not in self._pair.residuals
        ]
        whole, own = results[: len(written)], results[len(written) :]
        for part, body in zip(self._parts, bodies, strict=True):
            count = len(body.own_out) if part.group == 1 else loop.num_carry
            self._own.append(own[:count])
            own = own[count:]
        stacks = [eqn.outvars[loop.num_carry + number] for number in written]
        entries = self._iteration.forward_results[loop.num_carry :]
        values = [entries[number] for number in written]
        self._given.update(
            (value, stack)
            for value, stack in zip(values, whole, strict=True)
            if not isinstance(value, Literal)
        )
        return _bound([*eqn.outvars[: loop.num_carry], *stacks], [*carried, *whole])

    def backward(self, eqn: Any, inline: Inline) -> dict[Any, Any]:
        """Puts the backward loops in; returns the values that replace the results."""
        loop = self._pair.backward
        inputs = [*loop.body_consts, *loop.body_carry, *loop.body_entries]
        self._given.update(zip(inputs, eqn.invars, strict=True))
        bodies = [backward_body(self._iteration, part) for part in self._parts]
        results = self._put(loop, bodies, self._own, inline)
        return _bound(eqn.outvars, results)

    def _put(
        self, loop: Any, bodies: list[PartBody], own: list[list[Any]], inline: Inline
    ) -> list[Any]:
        bodies_run = [*bodies, *(body.again for body in bodies if body.again is not None)]
        consts = list(dict.fromkeys(v for body in bodies_run for v in body.consts))
        entries = list(dict.fromkeys(v for body in bodies_run for v in body.entries))
        groups = [consts, loop.body_carry, entries]
        operands = [self._given[v] for group in groups for v in group]
        sizes = [len(group) for group in groups]
        for stacks in own:
            sizes.append(len(stacks))
            operands += stacks

        def run(*values: Any) -> list[Any]:
            rest, parted = list(values), []
            for size in sizes:
                parted.append(rest[:size])
                rest = rest[size:]
            given = dict(zip([*consts, *entries], [*parted[0], *parted[2]], strict=True))
            with planned_loops() if self._are_marked else contextlib.nullcontext():
                return run_parts(loop, self._parts, bodies, given, parted[1], parted[3:])

        return inline(run, operands)


def _bound(outvars: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    return {
        var: value
        for var, value in zip(outvars, values, strict=True)
        if not isinstance(var, DropVar)
    }
