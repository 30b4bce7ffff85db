"""Loop search: the plan of a step's loops that keeps a budget.

The plans of loops lie on a path (`loops.menu`), from the least time to the fewest bytes,
and at the end of either of its stretches, without groups and with them, the loops' bodies
are planned for fewer bytes as well (`search.tight_bodies`). XLA needs a rest, and less than
that by the bytes that a plan saves: a compilation shows the rest. On each stretch the
search ends after `MAX_COMPILATIONS_OF_LOOPS`, or one more for the last plan.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coop_jax.base.budget import format_bytes
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import Menu
from coop_jax.loops.parts import PlannedPair
from coop_jax.plan.planner import key_of
from coop_jax.search.candidates import MAX_COMPILATIONS, SLACK_WORTH_USING
from coop_jax.search.tight_bodies import TightBodies, TightBody
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured

# One more than for a straight line: the first compilation shows the rest.
MAX_COMPILATIONS_OF_LOOPS = MAX_COMPILATIONS + 1


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedLoops:
    """A program whose loops are planned, with XLA's figure for it.

    Attributes:
        planned: the pairs.
        bodies: the bodies of loops that are planned for fewer bytes.
        program: the program.
        saved_bytes: bytes that it was expected to save against the first plan of the path.
        predicted_bytes: the bytes that it was expected to need.
        compiled: the executable; None where XLA refuses to compile it.
        total_bytes: XLA's figure.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
        tightened: the places of the loops whose bodies were planned, in the program with
            the pairs.
    """

    planned: tuple[PlannedPair, ...]
    bodies: tuple[TightBody, ...]
    program: Program
    saved_bytes: int
    predicted_bytes: int
    compiled: Any
    total_bytes: int
    seconds_of: Callable[[Any], float | None]
    tightened: tuple[int, ...] = ()

    @functools.cached_property
    def executable_seconds(self) -> float:
        """Of the executable's instructions; 0 if they are not known."""
        return self.seconds_of(self.compiled) or 0.0

    def keeps(self, budget_bytes: int) -> bool:
        return self.compiled is not None and self.total_bytes <= budget_bytes


@dataclasses.dataclass(frozen=True, eq=False)
class _Stretch:
    """Plans between two numbers of saved bytes, on one device or several together.

    Attributes:
        number: the stretches are in the order of their numbers.
        low, high: of the first and of the last plan.
        bodies: those that are planned for fewer bytes; None: the menu's plans as they are.
        base_bytes: bytes that the menu's plan saves which the bodies are of.
    """

    number: int
    low: int
    high: int
    bodies: TightBodies | None = None
    base_bytes: int = 0


class LoopSearch:
    """The search along the path of plans of a program's loops.

    Arguments:
        program: the program.
        menu: the plans of its loops.
        tight_bodies: makes the bodies that can be planned of a program.
        unmodified_bytes: XLA's figure for the step as written.
        num_devices: the number of devices that values are divided over.
        compile_program: compiles a program.
        log: receives a line for every compilation.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
    """

    def __init__(
        self,
        program: Program,
        menu: Menu,
        tight_bodies: Callable[[Program], TightBodies],
        unmodified_bytes: int,
        num_devices: int,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
        seconds_of: Callable[[Any], float | None],
    ) -> None:
        self._program = program
        self._seconds_of = seconds_of
        self._menu = menu
        self._tight_bodies = tight_bodies
        self._unmodified_bytes = unmodified_bytes
        self._num_devices = num_devices
        self._compile_program = compile_program
        self._log = log
        # By number of the stretch and saved bytes, in the order of the path.
        self._measured: dict[tuple[int, int], PlannedLoops] = {}
        self._saved_at: dict[tuple[int, tuple[bytes, ...]], int] = {}
        self._stretches: list[_Stretch] = []
        self._further = self._further_stretches()
        self._first_bytes = _kept_bytes(menu.saving(0))
        # By the only figure that is known before any compilation.
        as_written = menu.bytes_as_written - self._first_bytes
        self._rest_bytes = unmodified_bytes - as_written // num_devices

    @property
    def num_compilations(self) -> int:
        return len(self._measured)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to plan: no pair, and no body worth it."""
        return not any(True for _ in self._all_stretches())

    def best(self, budget_bytes: int) -> PlannedLoops | None:
        """The fastest plan, by the instructions of the executables, of those compiled
        until one keeps a budget; None if none does."""
        for stretch in self._all_stretches():
            self._search(budget_bytes, stretch)
            found = self._fastest_that_keeps(budget_bytes)
            if found is not None and self._num_devices > 1:
                found = self._or_alike(found, budget_bytes, stretch)
            if found is not None:
                return found
        self.smallest()
        return self._fastest_that_keeps(budget_bytes)

    def smallest(self) -> PlannedLoops:
        """The plan with the fewest bytes by XLA: of the last of the stretches without
        groups and with them, their bodies planned where that is worth it, and of all that
        were compiled."""
        stretches = list(self._all_stretches())
        for stretch, following in zip(stretches, [*stretches[1:], None], strict=True):
            if following is None or following.bodies is None:
                self._measure(stretch, stretch.high)
        return min(
            self._measured.values(), key=lambda m: (m.compiled is None, m.total_bytes)
        )

    def least_bytes(self, works_bytes: int | None) -> int | None:
        """The least of a number of bytes and of those of the compiled plans; None: none."""
        known = [m.total_bytes for m in self._measured.values() if m.compiled is not None]
        known += [] if works_bytes is None else [works_bytes]
        return min(known, default=None)

    def _all_stretches(self) -> Iterator[_Stretch]:
        """The stretches in order; planned bodies are made when they are reached."""
        number = 0
        while True:
            if number == len(self._stretches):
                following = next(self._further, None)
                if following is None:
                    return
                self._stretches.append(following)
            yield self._stretches[number]
            number += 1

    def _further_stretches(self) -> Iterator[_Stretch]:
        number = 0
        for low, high in self._menu.stretches if self._menu.choices else [(0, 0)]:
            if self._menu.choices:
                yield _Stretch(number, low, high)
            bodies = self._bodies_of(high)
            if bodies is not None:
                most = high + bodies.most_saved_bytes
                yield _Stretch(number + 1, high + 1, most, bodies, high)
            number += 2

    def _bodies_of(self, base_bytes: int) -> TightBodies | None:
        """The bodies of the last plan of a stretch, if planning them may save enough."""
        least_bytes = self.least_bytes(self._unmodified_bytes)
        worth = SLACK_WORTH_USING * (least_bytes or 0) * self._num_devices
        bodies = self._tight_bodies(self._program_of(base_bytes))
        if bodies.largest_pool_bytes <= worth or bodies.most_saved_bytes <= worth:
            return None
        return bodies

    def _fastest_that_keeps(self, budget_bytes: int) -> PlannedLoops | None:
        """The fastest plan compiled so far that keeps a budget; of equally fast ones, or
        where their seconds are not known, the first on the path."""
        fitting = sorted(key for key, m in self._measured.items() if m.keeps(budget_bytes))
        if len(fitting) > 1:  # Reading them takes a part of the time of a compilation.
            fitting.sort(key=lambda key: self._measured[key].executable_seconds)
        return self._measured[fitting[0]] if fitting else None

    def _search(self, budget_bytes: int, stretch: _Stretch) -> None:
        """Compiles plans of a stretch, until one uses a budget well or no place is left;
        the last plan if no other keeps the budget."""
        low, high = stretch.low, stretch.high
        num_misses = further_bytes = 0
        for _ in range(MAX_COMPILATIONS_OF_LOOPS):
            at = self._aim(budget_bytes - further_bytes, low, high)
            num_compilations = self.num_compilations
            measured = self._measure(stretch, at)
            is_new = self.num_compilations > num_compilations
            if not is_new and stretch.bodies is None:
                break  # The path has no other plan in between.
            saved_bytes = max(at, measured.saved_bytes) // self._num_devices
            self._rest_bytes = measured.total_bytes + saved_bytes
            slack = budget_bytes - measured.total_bytes
            if measured.keeps(budget_bytes):
                high = at
                if at == stretch.low or slack <= SLACK_WORTH_USING * budget_bytes:
                    break
            elif stretch.bodies is None:
                low = at + 1
            else:
                low = at + 1
                # XLA's figure need not follow a pool: every miss makes the step longer.
                further_bytes = -slack * num_misses
                num_misses += 1
            if low > high:
                break
        if self._fastest_that_keeps(budget_bytes) is None:
            self._measure(stretch, stretch.high)

    def _or_alike(
        self, found: PlannedLoops, budget_bytes: int, stretch: _Stretch
    ) -> PlannedLoops:
        """The faster of a plan and of the next in which all iterations do the same.

        Of what is divided over devices XLA gathers parts while it multiplies others, or all
        of it before, and may do so otherwise in each of two loops: they may take longer
        than one loop that recomputes more.
        """
        at = self._menu.next_corner(found.saved_bytes)
        if stretch.bodies is None and found.saved_bytes < at <= stretch.high:
            self._measure(stretch, at)
        return self._fastest_that_keeps(budget_bytes) or found

    def _aim(self, budget_bytes: int, low: int, high: int) -> int:
        """The place between two of a stretch that is expected to keep a budget."""
        saved_bytes = (self._rest_bytes - budget_bytes) * self._num_devices
        return max(low, min(high, saved_bytes))

    def _saved_bytes(self, planned: Sequence[PlannedPair]) -> int:
        return self._first_bytes - _kept_bytes(planned)

    def _program_of(self, saved_bytes: int) -> Program:
        return with_planned_pairs(self._program, self._menu.saving(saved_bytes))

    def _measure(self, stretch: _Stretch, at: int) -> PlannedLoops:
        bodies: tuple[TightBody, ...] = ()
        tightened: tuple[int, ...] = ()
        if stretch.bodies is None:
            planned = tuple(self._menu.saving(at))
            program = with_planned_pairs(self._program, planned)
            saved_bytes = self._saved_bytes(planned)
            key = stretch.number, saved_bytes
        else:
            planned = tuple(self._menu.saving(stretch.base_bytes))
            program, bodies = stretch.bodies.saving(at - stretch.base_bytes)
            tightened = stretch.bodies.places(at - stretch.base_bytes)
            # Plans for other bytes may be the same.
            keys = tuple(key_of(body.graph, body.schedule) for body in bodies)
            saved_bytes = self._saved_at.setdefault((stretch.number, keys), at)
            key = stretch.number, saved_bytes
        if key not in self._measured:
            predicted_bytes = self._rest_bytes - saved_bytes // self._num_devices
            compiled, total_bytes = compile_measured(lambda: self._compile_program(program))
            self._log(
                f"compilation of loops {len(self._measured) + 1}: predicted "
                f"{format_bytes(predicted_bytes)}, XLA says {format_bytes(total_bytes)}"
            )
            self._measured[key] = PlannedLoops(
                planned,
                bodies,
                program,
                saved_bytes,
                predicted_bytes,
                compiled,
                total_bytes,
                self._seconds_of,
                tightened,
            )
        return self._measured[key]


def _kept_bytes(planned: Sequence[PlannedPair]) -> int:
    return sum(pair.kept_bytes for pair in planned)
