"""Shared constants: arrays of one constant that XLA:CPU makes once, and keeps.

Kernels of products and reductions take in the elementwise equations around them, and read
what a constant is broadcast to as an array. The readers in all segments share one, which
lives from the first to the last: a scale of attention scores is as large as they are. Then
they may also be split from the kernel. A constant that has passed a fence is not equal to
another, and its array stays in one segment. Constants are literals, and what is computed
from them alone, like the share of one example in the gradient of a mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from coop_jax.base._compat import Literal
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import CALLER, Program, consumers_of

# Primitives that have the same bits where XLA does not see the value of a constant.
_BLIND = frozenset("max min add sub".split())
_SCALES = frozenset("mul div".split())
# XLA folds these for constants, and looks through them for factors to join.
_LAYOUTS = frozenset("broadcast_in_dim expand_dims reshape squeeze transpose".split())
# Below, arrays of a constant take less memory than is worth an operand of a fence.
_NOTICEABLE_BYTES = 2**14


def shared_constants(program: Program) -> frozenset[int]:
    """Indices of the equations whose scalar constants have to pass a fence."""
    return _Constants(program).shared()


@dataclasses.dataclass(frozen=True)
class _Constant:
    """A value that is computed from literals alone.

    Attributes:
        number: what its elements are.
        sources: the equations with the literals.
        num_divisions: how often XLA rounds otherwise if it sees two of the divisors.
    """

    number: float
    sources: frozenset[int]
    num_divisions: int = 0


class _Constants:
    """The constants of a program, and what else XLA computes while it compiles."""

    def __init__(self, program: Program) -> None:
        self._eqns = program.eqns
        self._consumers = consumers_of(program)
        self._made_by = {v: i for i, eqn in enumerate(program.eqns) for v in eqn.outvars}
        self._known: dict[Any, _Constant] = {}
        self._folded: set[Any] = set()
        for index, eqn in enumerate(program.eqns):
            if all(map(self._is_folded, eqn.invars)):
                self._folded.update(eqn.outvars)
            constant = self._computed(index, eqn)
            if constant is not None and constant.num_divisions <= 1:
                self._known[eqn.outvars[0]] = constant

    def shared(self) -> frozenset[int]:
        found: set[int] = set()
        for index, eqn in enumerate(self._eqns):
            size_bytes = sum(aval_bytes(v.aval) for v in eqn.outvars)
            if size_bytes >= _NOTICEABLE_BYTES and eqn.outvars[0] not in self._known:
                for place, atom in enumerate(eqn.invars):
                    constant = self._of(index, atom)
                    if constant is not None and self._is_blind(index, place, constant):
                        found |= constant.sources
        return frozenset(found)

    def _of(self, index: int, atom: Any) -> _Constant | None:
        """The constant that an operand of an equation is."""
        if _is_scalar(atom):
            return _Constant(float(atom.val), frozenset([index]))
        return None if isinstance(atom, Literal) else self._known.get(atom)

    def _computed(self, index: int, eqn: Any) -> _Constant | None:
        name = eqn.primitive.name
        operands = [self._of(index, atom) for atom in eqn.invars]
        known = [operand for operand in operands if operand is not None]
        if not known or len(known) < len(operands):
            return None
        first = known[0]
        if name in _LAYOUTS:
            return first
        if name not in _SCALES or np.shape(eqn.outvars[0].aval):
            return None
        second = known[1]
        divisions = first.num_divisions + second.num_divisions
        if name == "mul":
            number = first.number * second.number
        elif second.number == 0:
            return None
        else:
            number = first.number / second.number
            divisions += not _is_exact(second.number)
        return _Constant(number, first.sources | second.sources, divisions)

    def _is_blind(self, index: int, place: int, constant: _Constant) -> bool:
        """Whether an equation has the same bits where XLA does not see a constant."""
        eqn = self._eqns[index]
        name = eqn.primitive.name
        if name in _BLIND:
            return True
        # XLA multiplies by the reciprocal of a divisor, whether it sees it or not, but
        # divides by what it computes.
        is_divisor = name == "div" and place == 1 and isinstance(eqn.invars[1], Literal)
        if not (is_divisor or name == "mul") or not _scales(constant):
            return False
        return _is_exact(constant.number) or not self._is_scaled_twice(index, place)

    def _is_scaled_twice(self, index: int, place: int) -> bool:
        """Whether another constant scales the same: XLA joins two that it sees."""
        eqn = self._eqns[index]
        before = self._behind_layouts(eqn.invars[1 - place])
        after = [i for v in eqn.outvars for i in self._readers_behind_layouts(v)]
        return any(map(self._is_scale, [*before, *after]))

    def _is_scale(self, index: int) -> bool:
        eqn = self._eqns[index]
        return eqn.primitive.name in _SCALES and any(map(self._is_folded, eqn.invars))

    def _is_folded(self, atom: Any) -> bool:
        """Whether XLA sees the value of an operand."""
        return isinstance(atom, Literal) or atom in self._folded

    def _behind_layouts(self, atom: Any) -> Iterable[int]:
        """The equation that makes a value, in whatever layout."""
        while not isinstance(atom, Literal) and atom in self._made_by:
            index = self._made_by[atom]
            if self._eqns[index].primitive.name not in _LAYOUTS:
                return [index]
            atom = self._eqns[index].invars[0]
        return []

    def _readers_behind_layouts(self, value: Any) -> Iterable[int]:
        """The equations that read a value, in whatever layout."""
        todo, found = [value], set[int]()
        while todo:
            for index in set(self._consumers.get(todo.pop(), ())) - {CALLER} - found:
                found.add(index)
                if self._eqns[index].primitive.name in _LAYOUTS:
                    todo += self._eqns[index].outvars
        return found


def _is_scalar(atom: Any) -> bool:
    """Whether an atom is a scalar literal of float16, float32 or float64."""
    if not isinstance(atom, Literal) or np.shape(atom.val):
        return False
    return np.issubdtype(np.asarray(atom.val).dtype, np.floating)


def _scales(constant: _Constant) -> bool:
    """Whether a factor or divisor is one that XLA does not simplify."""
    return constant.number != 0 and math.isfinite(constant.number)


def _is_exact(factor: float) -> bool:
    """Whether a factor or divisor is a power of two."""
    return abs(math.frexp(factor)[0]) == 0.5
