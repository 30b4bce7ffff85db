"""Broadcasts inside: what is broadcast for a loop is broadcast in its body.

Differentiation computes what no iteration changes before the loop, a mask repeated for
every sequence of the batch among it, and both loops of a pair hold it. In the body a
broadcast is part of what reads it, and the loops hold what is broadcast. So it is with a
stack whose entries are broadcast, and with a loop that does nothing else: the mask of every
time step, repeated for all features before the layers begin.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.loops.bodies import has_bodies, with_bodies, with_changed_bodies
from coop_jax.loops.broadcast_stacks import (
    broadcast_of_entries,
    broadcasts_of_loop,
    has_broadcast_entries,
)
from coop_jax.loops.loop import Loop
from coop_jax.loops.pairs import is_plannable
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.cse import without_dead
from coop_jax.trace.program import Program


def with_broadcasts_inside(program: Program) -> Program:
    """The program, whose loops broadcast their constants themselves."""
    eqns = _with_broadcasts_inside(program.eqns)
    if len(eqns) == len(program.eqns) and all(
        new is old for new, old in zip(eqns, program.eqns, strict=True)
    ):
        return program
    alive = tuple(without_dead(eqns, list(program.outvars)))
    return dataclasses.replace(program, eqns=alive)


def _with_broadcasts_inside(eqns: Sequence[Any]) -> list[Any]:
    broadcasts: dict[Any, Any] = {}
    changed: list[Any] = []
    for eqn in eqns:
        made = [eqn]
        if is_plannable(eqn):
            made = broadcasts_of_loop(Loop.of(eqn)) or [_of_loop(eqn, broadcasts)]
        elif has_bodies(eqn):
            made = [with_changed_bodies(eqn, with_broadcasts_inside)]
        for each in filter(_is_broadcast, made):
            broadcasts |= {v: each for v in each.outvars if not isinstance(v, DropVar)}
        changed += made
    return changed


def _of_loop(eqn: Any, broadcasts: dict[Any, Any]) -> Any:
    loop = Loop.of(eqn)
    operands, inputs = list(eqn.invars), list(loop.body.invars)
    inside: list[Any] = []
    for number, atom in enumerate(loop.consts):
        while not isinstance(atom, Literal) and atom in broadcasts:
            broadcast, made = broadcasts[atom], inputs[number]
            (atom,) = broadcast.invars
            operands[number] = atom
            inputs[number] = _compat.new_var(atom.aval)
            inside.insert(0, broadcast.replace(invars=[inputs[number]], outvars=[made]))
    first_stack = loop.num_consts + loop.num_carry
    for number, atom in enumerate(loop.stacks_read, first_stack):
        while not isinstance(atom, Literal) and has_broadcast_entries(broadcasts.get(atom)):
            broadcast, made = broadcasts[atom], inputs[number]
            (atom,) = broadcast.invars
            operands[number] = atom
            entry, inputs[number] = broadcast_of_entries(broadcast, made)
            inside.insert(0, entry)
    body = dataclasses.replace(
        loop.body, invars=tuple(inputs), eqns=(*inside, *loop.body.eqns)
    )
    inner = _with_broadcasts_inside(body.eqns)
    is_same = len(inner) == len(body.eqns)
    is_same = is_same and all(a is b for a, b in zip(inner, body.eqns, strict=True))
    if not inside and is_same:
        return eqn
    body = dataclasses.replace(body, eqns=tuple(without_dead(inner, list(body.outvars))))
    return with_bodies(eqn, [body]).replace(invars=operands)


def _is_broadcast(eqn: Any) -> bool:
    """Whether an equation repeats an operand and does nothing else."""
    if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
        return False
    (operand,), (result,) = eqn.invars, eqn.outvars
    if isinstance(operand, Literal) or _compat.has_explicit_sharding(result.aval):
        return False
    return aval_bytes(operand.aval) < aval_bytes(result.aval)
