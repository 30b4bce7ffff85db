"""Evaluate a jaxpr one equation at a time, inside of loops too, so that no fusion changes a
rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.loops.loop import Loop
from coop_jax.trace.inline import CHECKPOINTS


def evaluate(closed: Any, args: list[Any]) -> list[Any]:
    """The results of a closed jaxpr."""
    return _evaluated(*_compat.open_jaxpr(closed), args)


def _evaluated(jaxpr: Any, consts: Any, args: list[Any]) -> list[Any]:
    env = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom):
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        results = _results(eqn, [read(v) for v in eqn.invars])
        for var, value in zip(eqn.outvars, results, strict=True):
            if not isinstance(var, DropVar):
                env[var] = value
    return [read(v) for v in jaxpr.outvars]


def _results(eqn: Any, values: list[Any]) -> list[Any]:
    name = eqn.primitive.name
    if name == "scan":
        return _scan(Loop.of(eqn), values)
    if name == "cond":
        return evaluate(eqn.params["branches"][int(values[0])], values[1:])
    if name in ("jit", "pjit"):
        return evaluate(eqn.params["jaxpr"], values)
    if name in ("closed_call", "custom_jvp_call", "custom_vjp_call"):
        return evaluate(eqn.params["call_jaxpr"], values)
    if name == "eval_jaxpr":  # JAX 0.10 names its parameter otherwise.
        return _evaluated(*_compat.open_jaxpr(next(iter(eqn.params.values()))), values)
    if name in CHECKPOINTS:
        return _evaluated(eqn.params["jaxpr"], (), values)
    if name == "div":
        # Where one division repeats its divisor, XLA multiplies by the reciprocal instead.
        values = [jnp.broadcast_to(v, eqn.outvars[0].aval.shape) for v in values]
    results = eqn.primitive.bind(*values, **eqn.params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _scan(loop: Loop, values: list[Any]) -> list[Any]:
    first = loop.num_consts + loop.num_carry
    consts, carry = values[: loop.num_consts], values[loop.num_consts : first]
    order = range(loop.length)
    written: list[Any] = [None] * loop.length
    for i in reversed(order) if loop.is_reversed else order:
        entries = [stack[i] for stack in values[first:]]
        results = evaluate(loop.eqn.params["jaxpr"], [*consts, *carry, *entries])
        carry, written[i] = results[: loop.num_carry], results[loop.num_carry :]
    stacks = [jnp.stack(column) for column in zip(*written, strict=True)]
    if not written:
        shapes = (v.aval for v in loop.stacks_written)
        stacks = [jnp.zeros(aval.shape, aval.dtype) for aval in shapes]
    return [*carry, *stacks]


def bits(value: Any) -> np.ndarray:
    """A result as numbers that can be compared; keys by their words."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        value = jax.random.key_data(value)
    return np.asarray(value)
