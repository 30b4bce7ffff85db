"""Stretches: the plans of a step's loops in the order in which a search tries them.

First the pairs of loops of the step, without groups and then with them. At the end of each
such stretch a loop that is run again in the body of another makes a pair with its gradient
there: these are planned next, where that may save enough, and so on inwards. At the end of
all comes what the loops' bodies need at once (`search.tight_bodies`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import Menu
from coop_jax.loops.parts import PlannedPair
from coop_jax.search.tight_bodies import TightBodies, TightBody
from coop_jax.trace.program import Program

IsWorth = Callable[[int], bool]
BodiesOf = Callable[[Program, IsWorth], Sequence[TightBodies]]
Levels = tuple[tuple[PlannedPair, ...], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class LoopsOfProgram:
    """A program with the plans of its loops.

    Attributes:
        levels: the planned pairs: those of the step, then those in the bodies of their
            loops, as the program with the pairs before has them, and so on.
        bodies: the bodies of loops that are planned for fewer bytes.
        tightened: the places of the loops whose bodies were planned, in the program with
            the pairs.
        program: the program.
    """

    levels: Levels
    bodies: tuple[TightBody, ...]
    tightened: tuple[int, ...]
    program: Program

    @property
    def planned(self) -> tuple[PlannedPair, ...]:
        """The pairs of all levels."""
        return tuple(pair for level in self.levels for pair in level)

    @property
    def seconds(self) -> float:
        """Modelled time of recomputation, and of writing and reading what is kept."""
        return sum(pair.seconds for pair in self.planned)


@dataclasses.dataclass(frozen=True, eq=False)
class Stretch:
    """Plans between two numbers of saved bytes, on one device or several together.

    Attributes:
        ends: the numbers of the first and of the last plan of a menu; None: bodies are
            planned, of which `high` is found when it is asked for.
        base: the program that it plans loops of, with those that are planned before.
        base_bytes: bytes that the first plan of its menu, or its bodies as they are, save.
        menu: the plans of the pairs; None: bodies are planned.
        bodies: the bodies; None: pairs are planned.
        is_last_alone: whether the plan of bodies that saves most is the only one.
    """

    ends: tuple[int, int] | None
    base: LoopsOfProgram
    base_bytes: int
    menu: Menu | None = None
    bodies: TightBodies | None = None
    is_last_alone: bool = False
    # By number of saved bytes: to plan bodies takes longer than to compile them.
    _plans: dict[int, tuple[LoopsOfProgram, int]] = dataclasses.field(default_factory=dict)

    @property
    def low(self) -> int:
        """Bytes that the first plan saves."""
        if self.ends is not None:
            return self.ends[0]
        return self.high if self.is_last_alone else self.base_bytes + 1

    @property
    def high(self) -> int:
        """Bytes that the last plan saves."""
        if self.ends is not None:
            return self.ends[1]
        assert self.bodies is not None, "a stretch is of pairs or of bodies"
        return self.base_bytes + self.bodies.most_saved_bytes

    def at_most(self, saved_bytes: int) -> int:
        """So many bytes, or those of the last plan if these are fewer, which takes long to
        know of bodies."""
        if self.bodies is not None:
            if self.bodies.can_save_quickly(saved_bytes - self.base_bytes):
                return saved_bytes
        return min(self.high, saved_bytes)

    def goes_on_from(self, other: Stretch) -> bool:
        """Whether it plans more of the loops of the last plan of the one before it."""
        return len(self.base.levels) > len(other.base.levels)

    def plan(self, at: int) -> tuple[LoopsOfProgram, int]:
        """The plan at a number of saved bytes, and the bytes that it saves; made once."""
        if at not in self._plans:
            self._plans[at] = self._planned(at)
        return self._plans[at]

    def with_pairs(self, pairs: Sequence[PlannedPair]) -> tuple[LoopsOfProgram, int]:
        """A plan of the pairs of the menu, which need not be on the path, and the bytes
        that it saves."""
        assert self.menu is not None, "the pairs are of a menu"
        program = with_planned_pairs(self.base.program, pairs)
        levels = (*self.base.levels, tuple(pairs))
        kept_bytes = sum(pair.kept_bytes for pair in pairs)
        saved_bytes = self.base_bytes + self.menu.first_bytes - kept_bytes
        return LoopsOfProgram(levels, (), (), program), saved_bytes

    def _planned(self, at: int) -> tuple[LoopsOfProgram, int]:
        wanted = at - self.base_bytes
        if self.menu is not None:
            return self.with_pairs(self.menu.saving(wanted))
        assert self.bodies is not None, "a stretch is of pairs or of bodies"
        program, bodies, saved_bytes = self.bodies.saving(wanted)
        places = self.bodies.places(wanted)
        loops = LoopsOfProgram(self.base.levels, bodies, places, program)
        return loops, self.base_bytes + saved_bytes


def stretches(
    program: Program,
    menu: Menu,
    menu_of: Callable[[Program], Menu],
    bodies_of: BodiesOf,
    is_worth: IsWorth,
) -> Iterator[Stretch]:
    """The stretches of a program's loops, made as they are asked for.

    Arguments:
        program, menu: the program, and the plans of its pairs.
        menu_of: makes the plans of the pairs of a program that are not planned.
        bodies_of: makes the bodies of a program that can be planned, if they are worth it,
            in the ways in which they can be.
        is_worth: whether it is worth a compilation to save so many bytes, by what is
            known when it is asked.
    """
    base = LoopsOfProgram((), (), (), program)
    if menu.choices:
        yield from _of_pairs(base, 0, menu, menu_of, bodies_of, is_worth)
    else:
        yield from _of_bodies(base, 0, bodies_of, is_worth)


def _of_pairs(
    base: LoopsOfProgram,
    base_bytes: int,
    menu: Menu,
    menu_of: Callable[[Program], Menu],
    bodies_of: BodiesOf,
    is_worth: IsWorth,
) -> Iterator[Stretch]:
    """The stretches of a menu, each with those inside of its last plan."""
    for low, high in menu.stretches:
        ends = base_bytes + low, base_bytes + high
        stretch = Stretch(ends, base, base_bytes, menu)
        yield stretch
        last, saved_bytes = stretch.plan(stretch.high)
        inside = _inside(last, saved_bytes, menu_of, is_worth)
        if inside is None:
            yield from _of_bodies(last, saved_bytes, bodies_of, is_worth)
        else:
            yield from _of_pairs(*inside, menu_of, bodies_of, is_worth)


def _inside(
    base: LoopsOfProgram,
    base_bytes: int,
    menu_of: Callable[[Program], Menu],
    is_worth: IsWorth,
) -> tuple[LoopsOfProgram, int, Menu] | None:
    """The outermost level inside of the planned loops that is worth it; the levels around
    it, which are not, keep the fewest bytes without groups. None: no level is.

    Returns:
        What is planned before, the bytes that the first plan of the level saves, its menu.
    """
    while (menu := menu_of(base.program)).choices:
        further_bytes = menu.bytes_as_written - menu.first_bytes
        base_bytes += further_bytes
        if is_worth(further_bytes + menu.most_saved_bytes):
            return base, base_bytes, menu
        low, high = menu.stretches[0]
        ends = base_bytes + low, base_bytes + high
        around = Stretch(ends, base, base_bytes, menu)
        base, base_bytes = around.plan(around.high)
    return None


def _of_bodies(
    base: LoopsOfProgram,
    base_bytes: int,
    bodies_of: BodiesOf,
    is_worth: IsWorth,
) -> Iterator[Stretch]:
    """The stretch of a program's bodies, if planning them may save enough; of the further
    ways to plan them only the plan that saves most."""
    for number, bodies in enumerate(bodies_of(base.program, is_worth)):
        if not is_worth(bodies.largest_pool_bytes):
            continue
        if _may_save_enough(bodies, is_worth):
            yield Stretch(None, base, base_bytes, bodies=bodies, is_last_alone=number > 0)


def _may_save_enough(bodies: TightBodies, is_worth: IsWorth) -> bool:
    """Whether what the bodies can save is worth it. What little effort shows of half of
    their bytes, of a quarter and so on mostly is enough to know."""
    part = bodies.largest_pool_bytes
    while is_worth(part := part // 2):
        if bodies.can_save_quickly(part):
            return True
    return is_worth(bodies.most_saved_bytes)


def place_between(
    too_large: tuple[int, int], small_enough: tuple[int, int], budget_bytes: int
) -> int:
    """The place between two with their figures where a straight line meets a budget."""
    (first, most), (last, least) = too_large, small_enough
    return first + -(-(last - first) * (most - budget_bytes) // (most - least))
