"""Inline: a training step to one flat program.

The complete step, with its gradients and its optimizer, becomes one straight line of
equations. Calls are inlined (`trace.calls`), equal pure equations are merged and dead ones
removed, as XLA would do anyway. Only so a recomputation that `jax.checkpoint` inserted
counts as the tensor that it duplicates, and the planner decides about it itself. A `scan`
that is no loop for XLA, of one iteration or unrolled, is calls of its body
(`trace.unrolled`). Other loops, branches, `shard_map`, Pallas and FFI calls stay single
operations here; `trace.mapped` and `trace.shards` take the equations of a `shard_map`.
Source lines and name stacks are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from coop_jax.base import _compat, _compat_typed
from coop_jax.base._compat import DropVar, Literal
from coop_jax.trace.calls import called_jaxpr, operands_of_call
from coop_jax.trace.costs import ELEMENTWISE
from coop_jax.trace.cse import merge_equal, without_dead
from coop_jax.trace.high_level import expanded
from coop_jax.trace.program import Program, reads
from coop_jax.trace.unrolled import entries_of, is_unrolled, order_of_iterations, stack_of

# Calls whose lowering puts a barrier around the recomputation inside of them.
CHECKPOINTS = ("remat", "remat2", "checkpoint")

Barrier = Callable[[Sequence[Any], Sequence[Any]], Any]


def flatten(
    closed: Any, donated: Sequence[bool], *, barrier: Barrier | None = None
) -> Program:
    """A traced closed jaxpr as a flat `Program`: calls inlined, merged, dead code gone.

    Arguments:
        closed: a closed jaxpr, as `jax.jit(f).trace(...).jaxpr` gives it.
        donated: one flag per input.
        barrier: makes an equation that passes values through, given the variables before
            and after it. With it, the recomputation of `jax.checkpoint` stays separate, as
            it does for XLA. Without it, the recomputation merges with the equations that
            it repeats.
    """
    inliner = _Inliner(barrier)
    jaxpr, consts = _compat.open_jaxpr(closed)
    outvars = inliner.inline(jaxpr, [*jaxpr.invars], consts, lambda eqn: eqn.source_info)
    eqns = _with_explicit_broadcasts(inliner.eqns)
    eqns, outvars = merge_equal(eqns, outvars)
    eqns = without_dead(eqns, outvars)
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


def inlined(
    run: Callable[..., Sequence[Any]], operands: Sequence[Any], like: Any
) -> tuple[list[Any], list[tuple[Any, Any]], list[Any]]:
    """A function of operands as equations of a program.

    Arguments:
        run: the function, of arrays.
        operands: variables or literals of the program.
        like: an equation whose name scopes and source line the new ones get.

    Returns:
        The equations; the constants that they read, with their variables; the results.
    """
    # A part of a planned loop may be one iteration, and stays what its plan is of.
    inliner = _Inliner(None, takes_loops_apart=False)
    avals = [v.aval for v in operands]
    with _compat_typed.on_mesh_of([*avals, *(v.aval for v in like.outvars)]):
        closed = jax.make_jaxpr(run)(*map(_compat_typed.struct_of, avals))
    jaxpr, consts = _compat.open_jaxpr(closed)
    info = like.source_info

    def as_like(eqn: Any) -> Any:
        return _compat.nest_source_info(info, eqn.source_info).replace(
            traceback=info.traceback
        )

    results = inliner.inline(jaxpr, operands, consts, as_like)
    return inliner.eqns, inliner.constants, results


class _Inliner:
    """Appends the equations of nested calls to one list, renaming variables."""

    def __init__(self, barrier: Barrier | None, *, takes_loops_apart: bool = True) -> None:
        self._takes_loops_apart = takes_loops_apart
        self.eqns: list[Any] = []
        self.constants: list[tuple[Any, Any]] = []
        self._barrier = barrier
        self._made_of: dict[Any, Sequence[Any]] = {}  # By stack, its entries.

    def inline(self, jaxpr, operands, consts, source_info_of) -> list[Any]:
        """Append a jaxpr's equations with its inputs replaced; returns its results."""
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
            called = called_jaxpr(eqn) or expanded(eqn)
            if _is_identity(eqn):
                outvars = invars
            elif self._takes_loops_apart and is_unrolled(eqn):
                outvars = self._inline_iterations(eqn, invars, info)
            elif called is None:
                outvars = [
                    v if isinstance(v, DropVar) else _compat.new_var(v.aval)
                    for v in eqn.outvars
                ]
                self.eqns.append(
                    eqn.replace(invars=invars, outvars=outvars, source_info=info)
                )
            else:
                operands = operands_of_call(eqn, invars)
                outvars = self._inline_call(eqn, called, operands, info)
            for var, value in zip(eqn.outvars, outvars, strict=True):
                env[var] = value
        return [read(v) for v in jaxpr.outvars]

    def _inline_call(self, eqn, called, invars, info) -> list[Any]:
        """Inline a call, with its name as a scope."""
        inner, consts = _compat.open_jaxpr(called)
        name = eqn.params.get("name")
        if name is not None:
            info = info.replace(name_stack=info.name_stack.extend(f"jit({name})"))
        unspecified = [None] * max(len(invars), len(eqn.outvars))
        in_shardings = eqn.params.get("in_shardings") or unspecified
        out_shardings = eqn.params.get("out_shardings") or unspecified
        invars = self._constrain(invars, in_shardings, info)
        if self._barrier is not None and _keeps_apart(eqn):
            invars = self._behind_barrier(invars, self._barrier)
        outvars = self.inline(
            inner,
            invars,
            consts,
            lambda e: _compat.nest_source_info(info, e.source_info),
        )
        return self._constrain(outvars, out_shardings, info)

    def _inline_iterations(self, eqn, invars, info) -> list[Any]:
        """Inline the body of a `scan`, once for each iteration."""
        num_consts, num_carry = _compat.scan_sizes(eqn)
        num_whole = num_consts + num_carry
        body, constants = _compat.open_jaxpr(eqn.params["jaxpr"])
        carried, stacks = invars[num_consts:num_whole], invars[num_whole:]
        entries = [self._entries_of(stack, eqn) for stack in stacks]
        made: dict[int, list[Any]] = {}
        for number in order_of_iterations(eqn):
            results = self.inline(
                body,
                [*invars[:num_consts], *carried, *(stack[number] for stack in entries)],
                constants,
                lambda e: _compat.nest_source_info(info, e.source_info),
            )
            carried, made[number] = results[:num_carry], results[num_carry:]
        made_entries = zip(*(made[number] for number in sorted(made)), strict=True)
        return [*carried, *(self._stack_of(entries, eqn) for entries in made_entries)]

    def _entries_of(self, stack, like) -> Sequence[Any]:
        """The entries of a stack: those that it was made of, or else slices."""
        if not isinstance(stack, Literal) and stack in self._made_of:
            return self._made_of[stack]
        return self._append(entries_of, [stack], like)

    def _stack_of(self, entries, like) -> Any:
        """The stack of the entries, which a later loop may read one by one."""
        [stack] = self._append(stack_of, entries, like)
        self._made_of[stack] = entries
        return stack

    def _append(self, run, operands, like) -> list[Any]:
        """Append the equations of a function of operands; returns its results."""
        eqns, constants, results = inlined(run, operands, like)
        self.eqns += eqns
        self.constants += constants
        return results

    def _behind_barrier(self, atoms, barrier: Barrier) -> list[Any]:
        after = [v if isinstance(v, Literal) else _compat.new_var(v.aval) for v in atoms]
        # One barrier per value: a value that only a dead equation reads is dead, too.
        self.eqns += [
            barrier([v], [same])
            for v, same in zip(atoms, after, strict=True)
            if not isinstance(v, Literal)
        ]
        return after

    def _constrain(self, atoms, shardings, info) -> list[Any]:
        """The atoms, with the sharding that an inlined `jit` requires for each of them."""
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


def _keeps_apart(eqn: Any) -> bool:
    """Whether the equation is a `jax.checkpoint` that JAX lowers behind a barrier."""
    if eqn.primitive.name not in CHECKPOINTS or not eqn.params.get("differentiated"):
        return False
    prevents = eqn.params.get("prevent_cse", True)
    return any(prevents) if isinstance(prevents, tuple) else bool(prevents)


def _is_identity(eqn: Any) -> bool:
    """Whether the equation passes its operand through after differentiation.

    Such equations are for `jax.checkpoint` alone: names, and roundings to the precision
    that the operand has.
    """
    name = eqn.primitive.name
    if name == "name":
        return True
    if name != "reduce_precision" or isinstance(eqn.invars[0], Literal):
        return False
    info = jax.numpy.finfo(eqn.invars[0].aval.dtype)
    bits = eqn.params["exponent_bits"], eqn.params["mantissa_bits"]
    return bits == (info.nexp, info.nmant)


def _with_explicit_broadcasts(eqns: list[Any]) -> list[Any]:
    """The equations, with one more for every broadcast that a primitive implies.

    Lowering makes it an operation anyway, and XLA:CPU stores its result from the forward
    to the backward pass (14 % of the temporaries of an MLP-Mixer): it has to be a value of
    the program to be planned.
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
