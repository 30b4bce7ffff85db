"""Loop search: the plan of a step's loops that keeps a budget.

All plans of loops lie on one path (`loops.menu`), and what XLA needs for one of them is
what it keeps and a rest that changes little along the path: a compilation shows the rest.
On each of the two stretches of the path, without groups and with them, the search ends
after `MAX_COMPILATIONS_OF_LOOPS`, or one more for the last plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import Menu
from coop_jax.loops.parts import PlannedPair
from coop_jax.search.candidates import MAX_COMPILATIONS, SLACK_WORTH_USING
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured

# One more than for a straight line: the first compilation shows the rest.
MAX_COMPILATIONS_OF_LOOPS = MAX_COMPILATIONS + 1


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedLoops:
    """A program whose loops are planned, with XLA's figure for it.

    Attributes:
        planned: the pairs.
        program: the program.
        predicted_bytes: the bytes that it was expected to need.
        compiled: the executable; None where XLA refuses to compile it.
        total_bytes: XLA's figure.
    """

    planned: tuple[PlannedPair, ...]
    program: Program
    predicted_bytes: int
    compiled: Any
    total_bytes: int


class LoopSearch:
    """The search along the path of plans of a program's loops.

    Arguments:
        program: the program.
        menu: the plans of its loops.
        unmodified_bytes: XLA's figure for the step as written.
        num_devices: the number of devices that values are divided over.
        compile_program: compiles a program.
        log: receives a line for every compilation.
    """

    def __init__(
        self,
        program: Program,
        menu: Menu,
        unmodified_bytes: int,
        num_devices: int,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
    ) -> None:
        self._program = program
        self._menu = menu
        self._num_devices = num_devices
        self._compile_program = compile_program
        self._log = log
        self._measured: dict[int, PlannedLoops] = {}
        first_bytes = self._kept_bytes(menu.saving(0))
        as_written = menu.bytes_as_written // num_devices
        # By the only figure that is known before any compilation.
        self._rest_bytes = unmodified_bytes - as_written
        self._first_bytes = first_bytes

    @property
    def num_compilations(self) -> int:
        return len(self._measured)

    def best(self, budget_bytes: int) -> PlannedLoops | None:
        """The first plan of the path that is found to keep a budget; None if none does."""
        for low, high in self._menu.stretches:
            self._search(budget_bytes, low, high)
            fitting = [m for m in self._measured.values() if _keeps(m, budget_bytes)]
            if fitting:
                return max(fitting, key=lambda m: self._kept_bytes(m.planned))
        return None

    def smallest(self) -> PlannedLoops:
        """The plan with the fewest bytes by XLA: of the last of each stretch of the path
        and of all that were compiled."""
        for _, last in self._menu.stretches:
            self._measure(last)
        return min(
            self._measured.values(), key=lambda m: (m.compiled is None, m.total_bytes)
        )

    def _search(self, budget_bytes: int, low: int, high: int) -> None:
        """Compiles plans of a stretch of the path, until one uses a budget well or no place
        is left; the last plan if no other keeps the budget."""
        last = high
        at = self._aim(budget_bytes, low, high)
        for _ in range(MAX_COMPILATIONS_OF_LOOPS):
            num_compilations = self.num_compilations
            measured = self._measure(at)
            if self.num_compilations == num_compilations:
                break  # The path has no other plan in between.
            self._rest_bytes = measured.total_bytes - self._kept_bytes(measured.planned)
            if _keeps(measured, budget_bytes):
                high = at
                slack = budget_bytes - measured.total_bytes
                if at == 0 or slack <= SLACK_WORTH_USING * budget_bytes:
                    break
            else:
                low = at + 1
            if low > high:
                break
            at = self._aim(budget_bytes, low, high)
        if not any(_keeps(m, budget_bytes) for m in self._measured.values()):
            self._measure(last)

    def least_bytes(self, works_bytes: int | None) -> int | None:
        """The least of a number of bytes and of those of the compiled plans; None: none."""
        known = [m.total_bytes for m in self._measured.values() if m.compiled is not None]
        known += [] if works_bytes is None else [works_bytes]
        return min(known, default=None)

    def _aim(self, budget_bytes: int, low: int, high: int) -> int:
        """The place on the path between two of them that is expected to keep a budget."""
        kept_bytes = budget_bytes - self._rest_bytes
        saved_bytes = (self._first_bytes - kept_bytes) * self._num_devices
        return max(low, min(high, saved_bytes))

    def _kept_bytes(self, planned: Sequence[PlannedPair]) -> int:
        return sum(pair.kept_bytes for pair in planned) // self._num_devices

    def _measure(self, saved_bytes: int) -> PlannedLoops:
        planned = tuple(self._menu.saving(saved_bytes))
        kept_bytes = self._kept_bytes(planned)
        if kept_bytes not in self._measured:
            predicted_bytes = self._rest_bytes + kept_bytes
            program = with_planned_pairs(self._program, planned)
            compiled, total_bytes = compile_measured(lambda: self._compile_program(program))
            self._log(
                f"compilation of loops {len(self._measured) + 1}: predicted "
                f"{format_bytes(predicted_bytes)}, XLA says {format_bytes(total_bytes)}"
            )
            self._measured[kept_bytes] = PlannedLoops(
                planned, program, predicted_bytes, compiled, total_bytes
            )
        return self._measured[kept_bytes]


def _keeps(measured: PlannedLoops, budget_bytes: int) -> bool:
    return measured.compiled is not None and measured.total_bytes <= budget_bytes
