"""Own broadcasts: every reader of a broadcast value gets a broadcast of its own.

A flat program has one equation for equal broadcasts, in both passes of a step. XLA gives
a value one sharding. In the step as written each reader implies a broadcast of its own, in
the sharding of its other operands, which moves nothing: what is broadcast is small or lies
on every device. Where they are one value, readers that are sharded differently (products
of activations forward, of weights backward) have their other operands sent from device to
device instead. After the partitioning XLA merges those that are still equal.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.trace.program import Program, reads


def with_own_broadcasts(program: Program) -> Program:
    """The program, and the bodies of its loops, with a broadcast for every reader."""
    eqns = tuple(_with_own_broadcasts(program.eqns))
    return dataclasses.replace(program, eqns=eqns)


def _with_own_broadcasts(eqns: Sequence[Any]) -> list[Any]:
    broadcasts: dict[Any, Any] = {}
    num_readers: collections.Counter[Any] = collections.Counter()
    own: list[Any] = []
    for eqn in eqns:
        renamed = {}
        for var in dict.fromkeys(reads(eqn)):
            if var not in broadcasts:
                continue
            num_readers[var] += 1
            if num_readers[var] > 1:
                renamed[var] = again = _compat.new_var(var.aval)
                own.append(broadcasts[var].replace(outvars=[again]))
        if renamed:
            invars = [
                v if isinstance(v, Literal) else renamed.get(v, v) for v in eqn.invars
            ]
            eqn = eqn.replace(invars=invars)
        if eqn.primitive.name == "scan":
            eqn = _with_body(eqn)
        own.append(eqn)
        if _may_be_implied(eqn):
            broadcasts |= {v: eqn for v in eqn.outvars if not isinstance(v, DropVar)}
    return own


def _may_be_implied(eqn: Any) -> bool:
    """Whether elementwise equations can imply this one: a broadcast without new axes."""
    if eqn.primitive.name != "broadcast_in_dim":
        return False
    return len(eqn.invars[0].aval.shape) == len(eqn.outvars[0].aval.shape) > 0


def _with_body(loop: Any) -> Any:
    jaxpr, consts = _compat.open_jaxpr(loop.params["jaxpr"])
    body = _compat.close_jaxpr(
        jaxpr.constvars,
        consts,
        jaxpr.invars,
        jaxpr.outvars,
        _with_own_broadcasts(jaxpr.eqns),
        jaxpr.debug_info,
    )
    return loop.replace(params=loop.params | {"jaxpr": body})
