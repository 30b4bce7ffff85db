"""Broadcast stacks: stacks whose entries are broadcast, as one broadcast and one by one."""

from __future__ import annotations

from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.loops.loop import Loop

_NAME = "broadcast_in_dim"


def broadcasts_of_loop(loop: Loop) -> list[Any]:
    """The equations that make the stacks of a loop that broadcasts entries and does nothing
    else; empty if it is no such loop."""
    body = loop.body
    if loop.num_carry or not all(map(_is_simple_broadcast, body.eqns)):
        return []
    whole = dict(zip(loop.body_entries, loop.stacks_read, strict=True))
    made = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    broadcasts: list[Any] = []
    for stack, entry in zip(loop.stacks_written, loop.body_entries_out, strict=True):
        if isinstance(stack, DropVar):
            continue
        chain: list[Any] = []
        while not isinstance(entry, Literal) and entry in made:
            chain.append(made[entry])
            (entry,) = chain[-1].invars
        if not chain or isinstance(entry, Literal) or entry not in whole:
            return []
        broadcasts += _of_whole(whole[entry], chain[::-1], stack)
    return broadcasts


def _of_whole(atom: Any, chain: list[Any], stack: Any) -> list[Any]:
    """Broadcasts of entries, one of the result of the other, as those of a stack."""
    length, eqns = stack.aval.shape[0], []
    for number, eqn in enumerate(chain):
        made = stack
        if number < len(chain) - 1:
            aval = eqn.outvars[0].aval
            made = _compat.new_var(aval.update(shape=(length, *aval.shape)))
        dims = (0, *(d + 1 for d in eqn.params["broadcast_dimensions"]))
        params = {"shape": made.aval.shape, "broadcast_dimensions": dims}
        eqns.append(eqn.replace(invars=[atom], outvars=[made], params=eqn.params | params))
        atom = made
    return eqns


def has_broadcast_entries(broadcast: Any | None) -> bool:
    """Whether there is a broadcast of a stack, each entry of which is that of an entry."""
    if broadcast is None or not _is_simple_broadcast(broadcast):
        return False
    (operand,), (made,) = broadcast.invars, broadcast.outvars
    leading = tuple(broadcast.params["broadcast_dimensions"][:1])
    return leading == (0,) and operand.aval.shape[0] == made.aval.shape[0]


def broadcast_of_entries(broadcast: Any, made: Any) -> tuple[Any, Any]:
    """Of a broadcast with broadcast entries, that of one entry.

    Arguments:
        broadcast: the broadcast of the stack.
        made: the variable of its entry.

    Returns:
        The equation, and the variable of the entry that it reads.
    """
    (operand,) = broadcast.invars
    entry = _compat.new_var(operand.aval.update(shape=operand.aval.shape[1:]))
    dims = tuple(d - 1 for d in broadcast.params["broadcast_dimensions"][1:])
    params = {"shape": made.aval.shape, "broadcast_dimensions": dims}
    params = broadcast.params | params
    return broadcast.replace(invars=[entry], outvars=[made], params=params), entry


def _is_simple_broadcast(eqn: Any) -> bool:
    """Whether an equation broadcasts a variable, and nothing says how it is divided."""
    return (
        eqn.primitive.name == _NAME
        and len(eqn.invars) == 1
        and not isinstance(eqn.invars[0], Literal)
        and eqn.params.get("sharding") is None
        and not _compat.has_explicit_sharding(eqn.outvars[0].aval)
    )
