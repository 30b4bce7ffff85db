"""Menu: what all pairs of loops of a program can save, the cheapest savings first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.loops.frontier import Retained, frontier
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.loop import Loop
from coop_jax.loops.pairs import find_pairs, is_plannable
from coop_jax.loops.parts import PlannedPair, mixture
from coop_jax.targets import Target
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program, reads


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """A pair of loops with the choices that it has.

    Attributes:
        iteration: one iteration of the pair.
        hull: the lower convex hull of its choices, from the least time to the fewest bytes.
        path: the loops around the pair, each by its place in the one before: their bodies
            hold the pair.
        num_runs: how often the pair runs in a step.
    """

    iteration: Iteration
    hull: tuple[Retained, ...]
    path: tuple[int, ...] = ()
    num_runs: int = 1

    @property
    def bytes_as_written(self) -> int:
        """Bytes of the residuals that the loops keep as they are written."""
        pair = self.iteration.pair
        return sum(aval_bytes(pair.forward.stacks_written[r].aval) for r in pair.residuals)


@dataclasses.dataclass(frozen=True)
class _Step:
    """Of one pair, from one choice to the next, for all iterations."""

    pair: int
    corner: int
    bytes_each: int
    seconds_each: float


class Menu:
    """The plans of all pairs of loops of a program, ordered by the bytes that they save.

    Under one price of bytes in seconds every pair is at a corner of its hull, and at most
    one of them between two. So all plans lie on one path, and a number of bytes names one
    of them.

    Attributes:
        choices: the pairs with their choices.
        most_saved_bytes: bytes that the last plan of the path saves against the first.
    """

    def __init__(self, choices: Sequence[Choices]) -> None:
        self.choices = tuple(choices)
        steps = [
            _Step(
                pair,
                corner,
                more.kept_bytes - less.kept_bytes,
                (less.seconds - more.seconds) * each.num_runs,
            )
            for pair, each in enumerate(self.choices)
            for corner, (more, less) in enumerate(
                zip(each.hull, each.hull[1:], strict=False)
            )
        ]
        # Along a hull the price rises, so that the steps of one pair stay in order.
        self._steps = sorted(
            steps, key=lambda s: (s.seconds_each / s.bytes_each, s.pair, s.corner)
        )
        self.most_saved_bytes = sum(map(self._bytes, self._steps))

    @property
    def bytes_as_written(self) -> int:
        """Bytes of the residuals of all pairs as they are written."""
        return sum(each.bytes_as_written for each in self.choices)

    def saving(self, saved_bytes: int) -> list[PlannedPair]:
        """The first plan of the path that saves so many bytes against the first, or the
        last one."""
        corners = [0] * len(self.choices)
        partial: dict[int, int] = {}
        for step in self._steps:
            if saved_bytes <= 0:
                break
            if self._bytes(step) <= saved_bytes:
                corners[step.pair] = step.corner + 1
            else:
                partial[step.pair] = -(-saved_bytes // step.bytes_each)
            saved_bytes -= self._bytes(step)
        return [
            self._planned(pair, corners[pair], partial.get(pair, 0))
            for pair in range(len(self.choices))
        ]

    def _planned(self, pair: int, corner: int, num_less: int) -> PlannedPair:
        each = self.choices[pair]
        less = each.hull[min(corner + 1, len(each.hull) - 1)]
        if num_less and not each.iteration.pair.may_be_divided:
            num_less = each.iteration.pair.length
        planned = mixture(each.iteration, each.hull[corner], less, num_less)
        return dataclasses.replace(planned, path=each.path, num_runs=each.num_runs)

    def _bytes(self, step: _Step) -> int:
        return step.bytes_each * self.choices[step.pair].iteration.pair.length


def menu_of(program: Program, target: Target) -> Menu:
    """The menu of a program on a target; empty if it has no pair of loops."""
    return Menu(list(_choices(program, target, (), 1)))


def _choices(
    program: Program, target: Target, path: tuple[int, ...], num_runs: int
) -> Iterator[Choices]:
    """The pairs of a program, and those in the bodies of its other loops."""
    pairs = find_pairs(program)
    for pair in pairs:
        iteration = Iteration.of(pair, _outliving(program, pair.backward_index))
        yield Choices(iteration, tuple(frontier(iteration, target)), path, num_runs)
    paired = {i for pair in pairs for i in (pair.forward_index, pair.backward_index)}
    for index, eqn in enumerate(program.eqns):
        if index not in paired and is_plannable(eqn):
            loop = Loop.of(eqn)
            inside = (*path, index), num_runs * loop.length
            yield from _choices(loop.body, target, *inside)


def _outliving(program: Program, index: int) -> set[Any]:
    """The variables whose values are there after an equation in any case."""
    alive = {*program.invars, *program.constvars}
    alive |= {v for v in program.outvars if not isinstance(v, Literal)}
    for eqn in program.eqns[index + 1 :]:
        alive.update(reads(eqn))
    return alive
