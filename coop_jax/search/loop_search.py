"""Loop search: the plan of a step's loops that keeps a budget.

The plans of loops lie on a path, from the least time to the fewest bytes: the stretches of
`search.stretches`, one after the other. XLA needs a rest, and less than that by the bytes
that a plan saves: a compilation shows the rest. On each stretch the search ends after
`MAX_COMPILATIONS_OF_LOOPS`, or one more for the last plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from coop_jax.loops.menu import Menu
from coop_jax.search.beside_path import compiled_without_groups, fastest_beside
from coop_jax.search.candidates import MAX_COMPILATIONS, SLACK_WORTH_USING
from coop_jax.search.compiled_loops import CompiledLoops
from coop_jax.search.planned_loops import PlannedLoops, by_bytes
from coop_jax.search.stretches import (
    BodiesOf,
    Stretch,
    place_between,
    stretches,
)
from coop_jax.search.worthwhile_place import TimeOfMemory, worthwhile_place
from coop_jax.trace.program import Program

# One more than for a straight line: the first compilation shows the rest.
MAX_COMPILATIONS_OF_LOOPS = MAX_COMPILATIONS + 1
# The part of what bodies can save at which the smallest plan is looked for, too. Where a
# value leaves a fence, XLA's buffer of it is that of the value that goes in, and XLA does
# not compute what has such a buffer in place of an operand. The smallest pools take most
# fences: where one follows the operation that needs most, XLA needs a value more.
_BEFORE_THE_END = 0.95
# A further plan of bodies saves at least this part of what the last one missed the budget
# by: XLA's figure falls by hardly more than the pool does.
_LEAST_OF_A_MISS = 0.5
# Plans for the room that is worth its time: the figure of the first says what it is.
_TRIES_OF_WORTHWHILE = 2
# The part of a step's time that prices of what loops keep do not tell apart.
HARDLY = 0.05


class LoopSearch:
    """The search along the path of plans of a program's loops.

    Arguments:
        program: the program.
        menu_of: makes the plans of the pairs of a program that are not planned.
        bodies_of: as of `stretches`.
        memory: the time that a run takes to have memory, and the bytes of the step as
            written.
        num_devices: the number of devices that the step runs on: the bytes of a plan are
            of all of them together.
        compile_program: compiles a program.
        log: receives a line for every compilation.
        seconds_of: returns the seconds of an executable's instructions, None where they
            are not known.
        read_program: compiles a program to be read, in less time; None where that takes as
            long. So are plans compiled that are expected to exceed the budget.
        is_divided: whether XLA divides what loops compute over the devices.
    """

    def __init__(
        self,
        program: Program,
        menu_of: Callable[[Program], Menu],
        bodies_of: BodiesOf,
        memory: TimeOfMemory,
        num_devices: int,
        compile_program: Callable[[Program], Any],
        log: Callable[[str], None],
        seconds_of: Callable[[Any], float | None],
        *,
        read_program: Callable[[Program], Any] | None = None,
        is_divided: bool = False,
    ) -> None:
        self._is_divided = is_divided
        self.memory = memory
        self._num_devices = num_devices
        self._compiled = CompiledLoops(compile_program, read_program, seconds_of, log)
        self._stretches: list[Stretch] = []
        self._searched: set[tuple[int, int]] = set()  # Stretches, each for a budget.
        menu = menu_of(program)
        self._further = stretches(program, menu, menu_of, bodies_of, self._is_worth)
        # By the only figure that is known before any compilation. XLA may keep fewer bytes
        # of the step as written: values that are stacked twice.
        as_written = menu.bytes_as_written - menu.first_bytes
        self._rest_bytes = max(
            memory.unmodified_bytes - as_written // num_devices,
            memory.fixed_bytes + menu.first_bytes // num_devices,
        )

    @property
    def num_compilations(self) -> int:
        return self._compiled.num_compilations

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to plan: no pair, and no body worth it."""
        return not any(True for _ in self._all_stretches())

    def best(self, budget_bytes: int) -> PlannedLoops | None:
        """The fastest plan, by the instructions of the executables, of those compiled
        until one keeps a budget; None if none does."""
        for number, _ in enumerate(self._all_stretches()):
            found = self._best_on(number, budget_bytes)
            if found is not None:
                return self._that_runs(found, budget_bytes)
        self.smallest()
        found = self._compiled.fastest_that_keeps(budget_bytes)
        return None if found is None else self._that_runs(found, budget_bytes)

    def best_of_pairs(self, budget_bytes: int) -> PlannedLoops | None:
        """The plan of `best` if it is on the first stretch, of the pairs of the step
        without groups; None if it is not, or there are no pairs."""
        if self.pairs is None:
            return None
        found = self._best_on(0, budget_bytes)
        return None if found is None else self._that_runs(found, budget_bytes)

    @property
    def pairs(self) -> Stretch | None:
        """The first stretch, of the pairs of the step; None if it has no pairs."""
        first = next(self._all_stretches(), None)
        return None if first is None or first.menu is None else first

    def smallest(self) -> PlannedLoops:
        """The plan with the fewest bytes by XLA: of the last of all stretches that no other
        goes on from, and of those before the last ones of bodies.

        Others that were compiled for a budget may need less: XLA's figure need not follow
        what stacks save. The search for that figure would not come to them.
        """
        along = list(self._all_stretches())
        ends: list[tuple[Stretch, PlannedLoops]] = []
        for number, stretch in enumerate(along):
            following = along[number + 1 : number + 2]
            if not any(each.goes_on_from(stretch) for each in following):
                ends.append((stretch, self._measure(number, stretch.high)))
        tried = [measured for _, measured in ends]
        # The places are the same for every budget.
        base = min(ends, key=lambda end: by_bytes(end[1]))[0].base
        for number, stretch in enumerate(along):
            if stretch.bodies is not None and stretch.base is base:
                saved_bytes = int(_BEFORE_THE_END * stretch.bodies.most_saved_bytes)
                tried.append(self._measure(number, stretch.base_bytes + saved_bytes))
        return min(tried, key=by_bytes)

    def _all_stretches(self) -> Iterator[Stretch]:
        """The stretches in order, made when they are reached."""
        number = 0
        while True:
            if number == len(self._stretches):
                following = next(self._further, None)
                if following is None:
                    return
                self._stretches.append(following)
            yield self._stretches[number]
            number += 1

    def _is_worth(self, saved_bytes: int) -> bool:
        """Whether to save so many bytes may be worth a compilation."""
        least_bytes = self._compiled.least_bytes(self.memory.unmodified_bytes)
        return saved_bytes > SLACK_WORTH_USING * least_bytes * self._num_devices

    def _that_runs(self, found: PlannedLoops, budget_bytes: int) -> PlannedLoops | None:
        """The plan, compiled again if it was compiled to be read; the best of all if it
        does not keep the budget then."""
        if found.runs:
            return found
        again = self._compiled.again_to_run(found)
        return again if again.keeps(budget_bytes) else self.best(budget_bytes)

    def _best_on(self, number: int, budget_bytes: int) -> PlannedLoops | None:
        """The fastest plan that keeps a budget, of all that are compiled once a stretch was
        searched for it."""
        if (number, budget_bytes) not in self._searched:
            self._searched.add((number, budget_bytes))
            if not self._keeps_worthwhile(budget_bytes, number):
                self._search(budget_bytes, number)
        found = self._compiled.fastest_that_keeps(budget_bytes)
        if found is None or self._stretches[number].menu is None:
            return found
        if self._is_divided:
            found = self._or_alike(found, budget_bytes, number)
            return self._or_beside(found, budget_bytes, number)
        return self._or_least(found, budget_bytes, number)

    def _search(self, budget_bytes: int, number: int) -> None:
        """Compiles plans of a stretch, until one uses a budget well or no place is left;
        the last plan if no other keeps the budget."""
        stretch = self._stretches[number]
        low, high = stretch.low, None  # None: that of the stretch.
        too_large = small_enough = None  # Place and figure of the plans next to the budget.
        num_misses = further_bytes = 0
        for _ in range(MAX_COMPILATIONS_OF_LOOPS):
            at = self._aim(budget_bytes - further_bytes, stretch, low, high)
            if stretch.bodies is not None and too_large is not None and high is None:
                missed_bytes = (too_large[1] - budget_bytes) * self._num_devices
                if at - too_large[0] < missed_bytes * _LEAST_OF_A_MISS:
                    break
            if too_large is not None and small_enough is not None:
                # XLA's figure need not follow a pool, or what stacks save by ours.
                assert high is not None, "that of the plan that keeps the budget"
                if stretch.bodies is not None or at in (low, high):
                    at = place_between(too_large, small_enough, budget_bytes)
                    at = max(low, min(high, at))
            num_compilations = self.num_compilations
            measured = self._measured_rest(number, at, budget_bytes)
            is_new = self.num_compilations > num_compilations
            if not is_new and stretch.bodies is None:
                break  # The path has no other plan in between.
            slack = budget_bytes - measured.total_bytes
            if measured.keeps(budget_bytes):
                high, small_enough = at, (at, measured.total_bytes)
                if at == stretch.low or slack <= SLACK_WORTH_USING * budget_bytes:
                    break
            else:
                low = max(at, measured.saved_bytes) + 1
                too_large = at, measured.total_bytes
                if stretch.bodies is not None:
                    # Every miss makes the step longer.
                    further_bytes = -slack * num_misses
                    num_misses += 1
            if low > (stretch.at_most(low) if high is None else high):
                break
        if self._compiled.fastest_that_keeps(budget_bytes) is None:
            self._measure(number, stretch.high, budget_bytes)

    def _keeps_worthwhile(self, budget_bytes: int, number: int) -> bool:
        """Compiles the plan beyond which memory takes more time than it saves, if that is
        less than the budget, and another if XLA needs so much more for it; whether the last
        one keeps the budget."""
        stretch = self._stretches[number]
        if stretch.menu is None or self._is_divided or not self.memory.matters:
            return False
        keeps = False
        for _ in range(_TRIES_OF_WORTHWHILE):
            aim = self._aim(budget_bytes, stretch, stretch.low, None)
            known = self._rest_bytes, self.memory, self._num_devices
            at = worthwhile_place(stretch, aim, *known)
            if at <= aim:
                return False
            keeps = self._measured_rest(number, at, budget_bytes).keeps(budget_bytes)
        return keeps

    def _or_least(
        self, found: PlannedLoops, budget_bytes: int, number: int
    ) -> PlannedLoops:
        """The faster of a plan and of the one that keeps least without groups, if that is
        hardly slower by the model. XLA fuses less around what is kept, which no price of a
        value says.

        Where memory takes time, the model has told plans apart (`_keeps_worthwhile`), and
        that one is mostly slower.
        """
        if self.memory.matters:
            return found
        stretch = self._stretches[number]
        assert stretch.menu is not None, "pairs are planned"
        at = stretch.base_bytes + stretch.menu.stretches[0][1]
        if found.saved_bytes < at <= stretch.high:
            further_seconds = stretch.plan(at)[0].seconds - found.loops.seconds
            further_seconds /= self._num_devices
            if further_seconds <= HARDLY * found.executable_seconds:
                self._measure(number, at)  # Mostly it is slower after all.
        return self._compiled.fastest_that_keeps(budget_bytes) or found

    def _or_alike(
        self, found: PlannedLoops, budget_bytes: int, number: int
    ) -> PlannedLoops:
        """The faster of a plan and of the next in which all iterations do the same.

        Of what is divided over devices XLA gathers parts while it multiplies others, or all
        of it before, and may do so otherwise in each of two loops: they may take longer
        than one loop that recomputes more.
        """
        stretch = self._stretches[number]
        assert stretch.menu is not None, "pairs are planned"
        at = stretch.base_bytes
        at += stretch.menu.next_corner(found.saved_bytes - stretch.base_bytes)
        if found.saved_bytes < at <= stretch.high:
            self._measure(number, at, budget_bytes)
        return self._compiled.fastest_that_keeps(budget_bytes) or found

    def _or_beside(
        self, found: PlannedLoops, budget_bytes: int, number: int
    ) -> PlannedLoops:
        """The fastest of a plan and of those for its room that are expected to be faster,
        whether on the path or beside it; at most `MAX_COMPILATIONS` are compiled."""
        stretch = self._stretches[number]
        assert stretch.menu is not None, "pairs are planned"
        for _ in range(MAX_COMPILATIONS):
            measured = self._compiled.of_stretch(number)
            compiled = compiled_without_groups(measured, stretch.base_bytes)
            if not compiled:
                break
            beside = fastest_beside(
                *(stretch.menu, compiled, found.executable_seconds),
                *(budget_bytes, self._num_devices),
            )
            if beside is None:
                break
            pairs, expected_bytes = beside
            plan = stretch.with_pairs(pairs)
            self._compiled.measured(number, plan, expected_bytes, budget_bytes)
            found = self._compiled.fastest_that_keeps(budget_bytes) or found
        return found

    def _aim(self, budget_bytes: int, stretch: Stretch, low: int, high: int | None) -> int:
        """The place between two of a stretch, or from one to its end, that is expected to
        keep a budget."""
        saved_bytes = (self._rest_bytes - budget_bytes) * self._num_devices
        most = stretch.at_most(saved_bytes) if high is None else min(high, saved_bytes)
        return max(low, most)

    def _measure(self, number: int, at: int, budget_bytes: int = 0) -> PlannedLoops:
        """The plan at a place of a stretch, compiled: to run, if it is expected to keep a
        budget."""
        plan = self._stretches[number].plan(at)
        predicted_bytes = self._rest_bytes - plan[1] // self._num_devices
        return self._compiled.measured(number, plan, predicted_bytes, budget_bytes)

    def _measured_rest(self, number: int, at: int, budget_bytes: int) -> PlannedLoops:
        """As `_measure`; its figure shows the rest."""
        measured = self._measure(number, at, budget_bytes)
        saved_bytes = max(at, measured.saved_bytes) // self._num_devices
        self._rest_bytes = measured.total_bytes + saved_bytes
        return measured
