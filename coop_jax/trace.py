"""Trace: a training step to one flat program.

The whole step, with its gradients and its optimizer, becomes one straight line of
equations. Calls are inlined (`jit`, `custom_jvp`, `custom_vjp`, `checkpoint`,
`closed_call`), equal pure equations are merged and dead ones removed, as XLA would do
anyway: only so does a recomputation that `jax.checkpoint` put there count as the tensor
it duplicates, and the planner decides about it afresh. Loops, branches, `shard_map`,
Pallas and FFI calls stay single operations. Source lines and name stacks are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from coop_jax import _compat
from coop_jax._compat import DropVar, Literal
from coop_jax.costs import ELEMENTWISE
from coop_jax.program import Program, reads

# Primitive name -> the parameter that holds the called jaxpr.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


def flatten(closed: Any, donated: Sequence[bool]) -> Program:
    """A traced closed jaxpr as a flat `Program`: calls inlined, merged, dead code gone.

    Arguments:
        closed: a closed jaxpr, as `jax.jit(f).trace(...).jaxpr` gives it.
        donated: one flag per input.
    """
    inliner = _Inliner()
    jaxpr, consts = _compat.open_jaxpr(closed)
    outvars = inliner.inline(jaxpr, [*jaxpr.invars], consts, lambda eqn: eqn.source_info)
    eqns = _with_explicit_broadcasts(inliner.eqns)
    eqns, outvars = _merge_equal(eqns, outvars)
    eqns = _without_dead(eqns, outvars)
    used = {v for eqn in eqns for v in reads(eqn)}
    used |= {v for v in outvars if not isinstance(v, Literal)}
    constants = [(v, c) for v, c in inliner.constants if v in used]
    return Program(
        constvars=tuple(v for v, _ in constants),
        consts=tuple(c for _, c in constants),
        invars=tuple(jaxpr.invars),
        outvars=tuple(outvars),
        eqns=tuple(eqns),
        donated=tuple(donated),
        debug_info=getattr(jaxpr, "debug_info", None),
    )


class _Inliner:
    """Appends the equations of nested calls to one list, renaming variables."""

    def __init__(self) -> None:
        self.eqns: list[Any] = []
        self.constants: list[tuple[Any, Any]] = []

    def inline(self, jaxpr, operands, consts, source_info_of) -> list[Any]:
        env: dict[Any, Any] = {}
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            env[var] = fresh = _compat.new_var(var.aval)
            self.constants.append((fresh, const))
        env.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom):
            return atom if isinstance(atom, Literal) else env[atom]

        for eqn in jaxpr.eqns:
            invars = [read(v) for v in eqn.invars]
            info = source_info_of(eqn)
            called = _called_jaxpr(eqn)
            if called is None:
                outvars = [
                    v if isinstance(v, DropVar) else _compat.new_var(v.aval)
                    for v in eqn.outvars
                ]
                self.eqns.append(
                    eqn.replace(invars=invars, outvars=outvars, source_info=info)
                )
            else:
                outvars = self._inline_call(eqn, called, invars, info)
            for var, value in zip(eqn.outvars, outvars, strict=True):
                env[var] = value
        return [read(v) for v in jaxpr.outvars]

    def _inline_call(self, eqn, called, invars, info) -> list[Any]:
        inner, consts = _compat.open_jaxpr(called)
        name = eqn.params.get("name")
        if name is not None:
            info = info.replace(name_stack=info.name_stack.extend(f"jit({name})"))
        unspecified = [None] * max(len(invars), len(eqn.outvars))
        in_shardings = eqn.params.get("in_shardings") or unspecified
        out_shardings = eqn.params.get("out_shardings") or unspecified
        invars = self._constrain(invars, in_shardings, info)
        outvars = self.inline(
            inner,
            invars,
            consts,
            lambda e: _compat.nest_source_info(info, e.source_info),
        )
        return self._constrain(outvars, out_shardings, info)

    def _constrain(self, atoms, shardings, info) -> list[Any]:
        """Keep what an inlined `jit` says about the sharding of its values."""
        constrained = []
        for atom, sharding in zip(atoms, shardings, strict=False):
            if sharding is None or _compat.is_unspecified(sharding):
                constrained.append(atom)
                continue
            closed = jax.make_jaxpr(
                lambda x, s=sharding: jax.lax.with_sharding_constraint(x, s)
            )(jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype))
            inner, consts = _compat.open_jaxpr(closed)
            constrained += self.inline(inner, [atom], consts, lambda _: info)
        return constrained


def _called_jaxpr(eqn: Any) -> Any | None:
    parameter = _CALLS.get(eqn.primitive.name)
    return None if parameter is None else eqn.params.get(parameter)


def _with_explicit_broadcasts(eqns: list[Any]) -> list[Any]:
    """Give the broadcast that an elementwise primitive implies its own equation.

    Lowering makes it one anyway, and XLA:CPU stores it, from the forward to the backward
    pass (14 % of the temporaries of an MLP-Mixer): it has to be a value of the program
    to be planned.
    """
    explicit = []
    for eqn in eqns:
        if eqn.primitive.name in ELEMENTWISE and len(eqn.outvars) == 1:
            shape = eqn.outvars[0].aval.shape
            invars = []
            for atom in eqn.invars:
                if _is_implicit_broadcast(atom, shape):
                    broadcast = _compat.broadcast_equation(atom, shape, eqn)
                    explicit.append(broadcast)
                    atom = broadcast.outvars[0]
                invars.append(atom)
            eqn = eqn.replace(invars=invars)
        explicit.append(eqn)
    return explicit


def _is_implicit_broadcast(atom: Any, shape: tuple[int, ...]) -> bool:
    return (
        not isinstance(atom, Literal)
        and len(atom.aval.shape) == len(shape) > 0
        and atom.aval.shape != shape
        and not _compat.has_explicit_sharding(atom.aval)
    )


def _merge_equal(eqns: list[Any], outvars: list[Any]) -> tuple[list[Any], list[Any]]:
    """Common subexpression elimination over pure equations."""
    renamed: dict[Any, Any] = {}
    seen: dict[Any, Any] = {}
    kept = []

    def read(atom):
        return atom if isinstance(atom, Literal) else renamed.get(atom, atom)

    for eqn in eqns:
        eqn = eqn.replace(invars=[read(v) for v in eqn.invars])
        key = None if eqn.effects else _equation_key(eqn)
        first = None if key is None else seen.get(key)
        if first is not None:
            for var, same in zip(eqn.outvars, first.outvars, strict=True):
                # A result that the first one dropped has no name to refer to.
                if isinstance(same, DropVar) and not isinstance(var, DropVar):
                    first = None
        if first is not None:
            renamed.update(zip(eqn.outvars, first.outvars, strict=True))
            continue
        if key is not None:
            seen[key] = eqn
        kept.append(eqn)
    return kept, [read(v) for v in outvars]


def _equation_key(eqn: Any) -> Any | None:
    operands = tuple(_literal_key(v) if isinstance(v, Literal) else v for v in eqn.invars)
    key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())), eqn.ctx)
    try:
        hash(key)
    except TypeError:  # an unhashable parameter: never merged
        return None
    return key


def _literal_key(literal: Any) -> Any:
    # By bytes: 0.0 == -0.0 and nan != nan would both merge wrongly.
    return str(literal.aval), np.asarray(literal.val).tobytes()


def _without_dead(eqns: list[Any], outvars: list[Any]) -> list[Any]:
    """Dead code elimination; equations with effects stay."""
    live = {v for v in outvars if not isinstance(v, Literal)}
    kept = []
    for eqn in reversed(eqns):
        if eqn.effects or any(v in live for v in eqn.outvars):
            kept.append(eqn)
            live.update(reads(eqn))
    return kept[::-1]
