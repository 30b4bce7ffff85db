"""Compiled loops: the plans of loops that a search has compiled, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.search.beside_path import Shape, shape_of
from coop_jax.search.planned_loops import PlannedLoops
from coop_jax.search.stretches import LoopsOfProgram
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured


class CompiledLoops:
    """The plans that are compiled so far, in the order of the path.

    Arguments:
        compile_program: compiles a program.
        read_program: compiles a program to be read, in less time; None where that takes as
            long. So are plans compiled that are expected to exceed the budget.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
        log: receives a line for every compilation.
    """

    def __init__(
        self,
        compile_program: Callable[[Program], Any],
        read_program: Callable[[Program], Any] | None,
        seconds_of: Callable[[Any], float | None],
        log: Callable[[str], None],
    ) -> None:
        self._compile_program, self._read_program = compile_program, read_program
        self._seconds_of = seconds_of
        self._log = log
        self._num_compiled_again = 0
        # By number of the stretch, saved bytes and plan, in the order of the path.
        self._measured: dict[tuple[int, int, Shape], PlannedLoops] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._measured) + self._num_compiled_again

    def least_bytes(self, unmodified_bytes: int) -> int:
        """The least bytes of the step as written and of the plans."""
        known = [m.total_bytes for m in self._measured.values() if m.compiled is not None]
        return min([*known, unmodified_bytes])

    def fastest_that_keeps(self, budget_bytes: int) -> PlannedLoops | None:
        """The fastest plan that keeps a budget; of equally fast ones, or where their
        seconds are not known, the first on the path."""
        fitting = sorted(key for key, m in self._measured.items() if m.keeps(budget_bytes))
        if len(fitting) > 1:  # Reading them takes a part of the time of a compilation.
            fitting.sort(key=lambda key: self._measured[key].executable_seconds)
        return self._measured[fitting[0]] if fitting else None

    def of_stretch(self, number: int) -> Iterator[PlannedLoops]:
        """The plans of a stretch."""
        return (measured for key, measured in self._measured.items() if key[0] == number)

    def measured(
        self,
        number: int,
        plan: tuple[LoopsOfProgram, int],
        predicted_bytes: int,
        budget_bytes: int,
    ) -> PlannedLoops:
        """A plan of a stretch, with the bytes that it saves: compiled once, to run if it is
        expected to keep a budget."""
        loops, saved_bytes = plan
        key = number, saved_bytes, shape_of(loops.planned)
        if key not in self._measured:
            self._measured[key] = self._compiled(
                *(loops, saved_bytes, predicted_bytes),
                to_run=self._read_program is None or predicted_bytes <= budget_bytes,
            )
        return self._measured[key]

    def again_to_run(self, found: PlannedLoops) -> PlannedLoops:
        """A plan that was compiled to be read, compiled to run."""
        again = self._compiled(
            *(found.loops, found.saved_bytes, found.predicted_bytes), to_run=True
        )
        self._num_compiled_again += 1
        key = next(key for key, measured in self._measured.items() if measured is found)
        self._measured[key] = again
        return again

    def _compiled(
        self, loops: LoopsOfProgram, saved_bytes: int, predicted_bytes: int, *, to_run: bool
    ) -> PlannedLoops:
        compile_program = self._compile_program
        if not to_run:
            assert self._read_program is not None, "without it all are compiled to run"
            compile_program = self._read_program
        compiled, total_bytes = compile_measured(lambda: compile_program(loops.program))
        self._log(
            f"compilation of loops {self.num_compilations + 1}: predicted "
            f"{format_bytes(predicted_bytes)}, XLA says {format_bytes(total_bytes)}"
        )
        return PlannedLoops(
            *(loops, saved_bytes, predicted_bytes),
            *(compiled, total_bytes, self._seconds_of, to_run),
        )
