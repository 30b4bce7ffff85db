"""Ties: equations that compare a value with what was selected from it.

The gradients of `max`, `reduce_max` and of a scattered maximum compare what was selected
with what it was selected from, for equality: `x == max(x)`. That is exact as long as both
sides come from the same bytes of `x`. A recomputation may round otherwise than the first
computation, where XLA fuses it otherwise; compared with a maximum that was kept, none of
its elements may be the largest, and their gradient would be lost without a word. So
whoever compares again selects again, from the same values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal
from coop_jax.trace.program import reads, writes

_COMPARISONS = frozenset(("eq", "ne"))
# Primitives whose results are elements of their operands, perhaps of another type.
_SELECTIONS = frozenset(
    "argsort broadcast_in_dim clamp concatenate convert_element_type copy cummax cummin "
    "dynamic_slice dynamic_update_slice expand_dims gather max min pad reduce_max "
    "reduce_min reduce_precision reduce_window_max reduce_window_min reshape rev scatter "
    "scatter-max scatter-min scatter_max scatter_min select_n sharding_constraint slice "
    "sort split squeeze stop_gradient transpose".split()
)


def ties(eqns: Sequence[Any]) -> dict[int, frozenset[Any]]:
    """The values that were selected from what they are compared with.

    Arguments:
        eqns: the equations of a flat program, or of the body of a loop.

    Returns:
        By equation that compares, if there are any: the values between those that both
        sides were selected from and the comparison. All are to be computed again for it.
    """
    maker = {v: eqn for eqn in eqns for v in writes(eqn)}
    found = {}
    for index, eqn in enumerate(eqns):
        if eqn.primitive.name in _COMPARISONS and _is_inexact(eqn.invars[0]):
            between = _between(*map(_Selected(maker).of, eqn.invars))
            if between:
                found[index] = between
    return found


def behind_selections(
    eqns: Sequence[Any], index: int, between: frozenset[Any]
) -> list[Any]:
    """An equation that compares, behind copies of those that make what it compares with.

    Arguments:
        eqns: as of `ties`.
        index: of the equation.
        between: of it, from `ties`.
    """
    needed, selecting = set(reads(eqns[index])), []
    for eqn in reversed(eqns[:index]):
        if not needed.isdisjoint(between.intersection(writes(eqn))):
            needed.update(reads(eqn))
            selecting.append(eqn)
    renamed: dict[Any, Any] = {}
    found = []
    for eqn in reversed(selecting):
        invars = _renamed(eqn.invars, renamed)
        renamed |= {v: _compat.new_var(v.aval) for v in writes(eqn)}
        outvars = _renamed(eqn.outvars, renamed)
        found.append(eqn.replace(invars=invars, outvars=outvars))
    return [*found, eqns[index].replace(invars=_renamed(eqns[index].invars, renamed))]


def _renamed(atoms: Iterable[Any], renamed: dict[Any, Any]) -> list[Any]:
    return [v if isinstance(v, Literal | DropVar) else renamed.get(v, v) for v in atoms]


class _Selected:
    """What a value was selected from, with the operands of each selection.

    Arguments:
        maker: the equation that makes each value of a program.
    """

    def __init__(self, maker: dict[Any, Any]) -> None:
        self._maker = maker

    def of(self, atom: Any) -> dict[Any, tuple[Any, ...]]:
        """By value that `atom` may be an element of, itself included: the operands that it
        was selected from in turn."""
        found: dict[Any, tuple[Any, ...]] = {}
        todo = [] if isinstance(atom, Literal) else [atom]
        while todo:
            v = todo.pop()
            if v in found:
                continue
            eqn = self._maker.get(v)
            selects = eqn is not None and eqn.primitive.name in _SELECTIONS
            found[v] = tuple(filter(_is_inexact, reads(eqn))) if selects else ()
            todo.extend(found[v])
        return found


def _between(
    left: dict[Any, tuple[Any, ...]], right: dict[Any, tuple[Any, ...]]
) -> frozenset[Any]:
    """The values of either side, not of both, that come from values of both."""
    common = left.keys() & right.keys()
    operands = {**left, **right}
    readers = defaultdict(list)
    for v, read in operands.items():
        for operand in read:
            readers[operand].append(v)
    found: set[Any] = set()
    todo = [reader for v in common for reader in readers[v]]
    while todo:
        v = todo.pop()
        if v not in common and v not in found:
            found.add(v)
            todo.extend(readers[v])
    return frozenset(found)


def _is_inexact(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)
