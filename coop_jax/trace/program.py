"""`Program`: a complete training step as one flat list of equations."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal

CALLER = -1  # In the place of an equation: reads the program's results.


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A flat, closed jaxpr: `(constants, inputs) -> outputs` through `eqns`.

    The same information as a `ClosedJaxpr`, in the same shape for every JAX version.

    Attributes:
        constvars, consts: captured arrays and the variables they are bound to.
        invars: one variable per dynamic argument leaf, in pytree order.
        outvars: one variable or literal per output leaf.
        eqns: the equations in execution order.
        donated: for every input whether its buffer may be reused.
        debug_info: names of arguments and results, for XLA's parameter names.
        mapped: the `shard_map` that it is the body of (`trace.mapped`): its values are
            those of one device. None: its values are whole arrays.
        compiler_options: those that it is compiled with beside the step's own, which take
            precedence.
    """

    constvars: tuple[Any, ...]
    consts: tuple[Any, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    eqns: tuple[Any, ...]
    donated: tuple[bool, ...]
    debug_info: Any
    mapped: Any = None
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_jaxpr(self) -> Any:
        return _compat.close_jaxpr(
            self.constvars,
            self.consts,
            self.invars,
            self.outvars,
            self.eqns,
            self.debug_info,
        )

    def __repr__(self) -> str:
        return (
            f"Program({len(self.eqns)} equations, {len(self.invars)} inputs "
            f"({sum(self.donated)} donated), {len(self.outvars)} outputs)"
        )


def reads(eqn: Any) -> list[Any]:
    """The variables an equation reads (its operands without the literals)."""
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def consumers_of(program: Program) -> dict[Any, list[int]]:
    """The places of the equations that read a value, by variable, once for every operand
    that it is, and `CALLER` for the program's results."""
    consumers: dict[Any, list[int]] = collections.defaultdict(list)
    for i, eqn in enumerate(program.eqns):
        for var in reads(eqn):
            consumers[var].append(i)
    for var in program.outvars:
        if not isinstance(var, Literal):
            consumers[var].append(CALLER)
    return consumers


def writes(eqn: Any) -> list[Any]:
    """The variables an equation defines (its results without the dropped ones)."""
    return [v for v in eqn.outvars if not isinstance(v, DropVar)]


def is_zero(atom: Any) -> bool:
    """Whether an atom is a literal of the program and a scalar zero."""
    return isinstance(atom, Literal) and not np.shape(atom.val) and not np.any(atom.val)


def all_equations(closed: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of all jaxprs in it."""
    for eqn in _compat.open_jaxpr(closed)[0].eqns:
        yield eqn
        for value in eqn.params.values():
            for nested in value if isinstance(value, (tuple, list)) else (value,):
                if _compat.is_jaxpr(nested):
                    yield from all_equations(nested)
