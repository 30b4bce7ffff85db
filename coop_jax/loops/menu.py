"""Menu: what all pairs of loops of a program can save, the cheapest savings first."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.loops.bodies import bodies_of, runs_of_bodies
from coop_jax.loops.choices import Choices
from coop_jax.loops.frontier import frontier
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.marks import is_planned
from coop_jax.loops.pairs import find_pairs
from coop_jax.loops.parts import PlannedPair
from coop_jax.loops.thin_inside import with_thin_loops
from coop_jax.targets import Target
from coop_jax.trace.program import Program, reads


@dataclasses.dataclass(frozen=True)
class _Step:
    """Of one pair, from one of its corners to the next."""

    pair: int
    corner: int
    saved_bytes: int
    price: float
    is_grouped: bool


class Menu:
    """The plans of all pairs of loops of a program, ordered by the bytes that they save.

    Under one price of bytes in seconds every pair is at a corner of its hull, and at most
    one of them between two. So all plans lie on one path, and a number of bytes names one
    of them. Those with groups come last: XLA needs more for their inner loops, and how much
    is not known before one is compiled.

    Attributes:
        choices: the pairs with their choices.
        most_saved_bytes: bytes that the last plan of the path saves against the first.
    """

    def __init__(self, choices: Sequence[Choices]) -> None:
        self.choices = tuple(choices)
        steps = [s for pair, each in enumerate(self.choices) for s in _steps(pair, each)]
        self._steps = sorted(steps, key=lambda s: (s.is_grouped, s.price, s.pair, s.corner))
        self.most_saved_bytes = sum(step.saved_bytes for step in self._steps)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The first and the last place of the path without groups, and with them."""
        without = sum(step.saved_bytes for step in self._steps if not step.is_grouped)
        stretches = [(0, without)]
        if without < self.most_saved_bytes:
            stretches.append((without + 1, self.most_saved_bytes))
        return stretches

    @property
    def first_bytes(self) -> int:
        """Bytes that the first plan of the path keeps."""
        return sum(pair.kept_bytes for pair in self.saving(0))

    @property
    def bytes_as_written(self) -> int:
        """Bytes of the residuals of all pairs as they are written."""
        return sum(each.bytes_as_written for each in self.choices)

    @property
    def corner_places(self) -> list[int]:
        """The places of the path where all iterations of each pair do the same."""
        return [*itertools.accumulate((s.saved_bytes for s in self._steps), initial=0)]

    def next_corner(self, saved_bytes: int) -> int:
        """The first place of the path, from one on, where all iterations of each pair do
        the same; the last place if there is none."""
        return next(
            (p for p in self.corner_places if p >= saved_bytes), self.most_saved_bytes
        )

    def saving(self, saved_bytes: int) -> list[PlannedPair]:
        """The first plan of the path that saves so many bytes against the first, or the
        last one."""
        planned = [each.corners[0] for each in self.choices]
        for step in self._steps:
            if saved_bytes <= 0:
                break
            each = self.choices[step.pair]
            planned[step.pair] = (
                each.corners[step.corner + 1]
                if step.saved_bytes <= saved_bytes
                else each.between(step.corner, saved_bytes)
            )
            saved_bytes -= step.saved_bytes
        return planned

    def beside(self, saved_bytes: int) -> Iterator[list[PlannedPair]]:
        """Plans that are not on the path and save so many bytes: iterations of one pair at
        two choices that are no neighbours, and the other pairs as on the path."""
        on_path = self.saving(saved_bytes)
        free_bytes = self.first_bytes - saved_bytes - sum(p.kept_bytes for p in on_path)
        for number, each in enumerate(self.choices):
            for planned in each.mixtures(on_path[number].kept_bytes + free_bytes):
                yield [*on_path[:number], planned, *on_path[number + 1 :]]


def _steps(pair: int, choices: Choices) -> Iterator[_Step]:
    """The steps of one pair. Groups may be cheaper than the step before them: their price
    is no lower, so that the steps stay in order."""
    highest = 0.0
    corners = choices.corners
    for corner, (more, less) in enumerate(itertools.pairwise(corners)):
        saved_bytes = more.kept_bytes - less.kept_bytes
        highest = max(highest, (less.seconds - more.seconds) / saved_bytes)
        is_grouped = any(part.group > 1 for part in less.parts)
        yield _Step(pair, corner, saved_bytes, highest, is_grouped)


def menu_of(program: Program, target: Target) -> Menu:
    """The menu of a program on a target; empty if it has no pair of loops to plan.

    In a program with planned pairs these are the pairs in the bodies of its planned loops:
    those of a loop that is run again, and its gradient.
    """
    return Menu(
        [
            Choices(iteration, tuple(frontier(iteration, target)), path, num_runs)
            for iteration, path, num_runs in iterations_of(program, target)
        ]
    )


def iterations_of(
    program: Program, target: Target, path: tuple[int, ...] = (), num_runs: int = 1
) -> Iterator[tuple[Iteration, tuple[int, ...], int]]:
    """The iterations of the pairs of a program that are not planned yet, and of those in
    the bodies of its other equations, each with `path` and `num_runs` as of `Choices`."""
    pairs = [p for p in find_pairs(program) if not is_planned(p.forward.eqn)]
    for pair in pairs:
        outliving = _outliving(program, pair.backward_index)
        iteration = Iteration.of(pair, outliving, target)
        yield with_thin_loops(iteration, target), path, num_runs
    paired = {i for pair in pairs for i in (pair.forward_index, pair.backward_index)}
    for index, eqn in enumerate(program.eqns):
        if index in paired:
            continue
        runs_inside = num_runs * runs_of_bodies(eqn)
        for number, body in enumerate(bodies_of(eqn)):
            yield from iterations_of(body, target, (*path, index, number), runs_inside)


def _outliving(program: Program, index: int) -> set[Any]:
    """The variables whose values are there after an equation in any case."""
    alive = {*program.invars, *program.constvars}
    alive |= {v for v in program.outvars if not isinstance(v, Literal)}
    for eqn in program.eqns[index + 1 :]:
        alive.update(reads(eqn))
    return alive
