"""Planned loops: a program whose loops are planned, with XLA's figure for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.trace.program import Program


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedLoops:
    """A program whose loops are planned, with XLA's figure for it.

    Attributes:
        loops: the program and its plans.
        saved_bytes: bytes that it was expected to save against the first plan of the path.
        predicted_bytes: the bytes that it was expected to need.
        compiled: the executable; None where XLA refuses to compile it.
        total_bytes: XLA's figure.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
        runs: whether the executable may run; else it was compiled to be read.
    """

    loops: LoopsOfProgram
    saved_bytes: int
    predicted_bytes: int
    compiled: Any
    total_bytes: int
    seconds_of: Callable[[Any], float | None]
    runs: bool = True

    @property
    def program(self) -> Program:
        """The program."""
        return self.loops.program

    @functools.cached_property
    def executable_seconds(self) -> float:
        """Of the executable's instructions; 0 if they are not known."""
        return self.seconds_of(self.compiled) or 0.0

    def keeps(self, budget_bytes: int) -> bool:
        return self.compiled is not None and self.total_bytes <= budget_bytes


def by_bytes(measured: PlannedLoops) -> tuple[bool, int]:
    """The key that orders plans by their bytes; those that XLA refuses come last."""
    return measured.compiled is None, measured.total_bytes
