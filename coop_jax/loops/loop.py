"""Loop: a `scan` equation with its body as a flat program."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.loops.bodies import bodies_of
from coop_jax.trace.program import Program


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A `scan` equation of a program.

    Attributes:
        eqn: the equation.
        num_consts, num_carry: how many of its operands are constants and carried values;
            the others are stacks that it reads one entry of per iteration.
    """

    eqn: Any
    num_consts: int
    num_carry: int

    @staticmethod
    def of(eqn: Any) -> Loop:
        return Loop(eqn, *_compat.scan_sizes(eqn))

    @functools.cached_property
    def body(self) -> Program:
        """One iteration, with calls inlined."""
        (body,) = bodies_of(self.eqn)
        return body

    @property
    def length(self) -> int:
        return self.eqn.params["length"]

    @property
    def is_reversed(self) -> bool:
        return self.eqn.params["reverse"]

    @property
    def unroll(self) -> int:
        """The iterations that one trip of the loop makes."""
        unroll = self.eqn.params["unroll"]
        return max(1, self.length) if unroll is True else int(unroll)

    @property
    def num_trips(self) -> int:
        """Trips of XLA's loop; iterations that are left over lie behind it."""
        return self.length // max(1, self.unroll)

    @property
    def _first_stack(self) -> int:
        return self.num_consts + self.num_carry

    # Operands and results of the equation.

    @property
    def consts(self) -> list[Any]:
        return list(self.eqn.invars[: self.num_consts])

    @property
    def init(self) -> list[Any]:
        return list(self.eqn.invars[self.num_consts : self._first_stack])

    @property
    def stacks_read(self) -> list[Any]:
        return list(self.eqn.invars[self._first_stack :])

    @property
    def stacks_written(self) -> list[Any]:
        return list(self.eqn.outvars[self.num_carry :])

    @functools.cached_property
    def read_whole(self) -> frozenset[Any]:
        """The variables that the loop reads otherwise than entry by entry."""
        atoms = [*self.consts, *self.init]
        return frozenset(v for v in atoms if not isinstance(v, Literal))

    # The same of one iteration: variables of the body.

    @property
    def body_consts(self) -> list[Any]:
        return list(self.body.invars[: self.num_consts])

    @property
    def body_carry(self) -> list[Any]:
        return list(self.body.invars[self.num_consts : self._first_stack])

    @property
    def body_entries(self) -> list[Any]:
        return list(self.body.invars[self._first_stack :])

    @property
    def body_carry_out(self) -> list[Any]:
        return list(self.body.outvars[: self.num_carry])

    @property
    def body_entries_out(self) -> list[Any]:
        return list(self.body.outvars[self.num_carry :])
