"""Choices: the plans of one pair of loops, from the least time to the fewest bytes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

from coop_jax.loops.frontier import Retained
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.parts import PlannedPair, in_groups, mixture


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """A pair of loops with the plans that it has.

    Attributes:
        iteration: one iteration of the pair.
        hull: what an iteration can retain: the lower convex hull.
        path: where the pair is: for each equation around it, from the outermost, its place
            in the program and the number of its body (`loops.bodies`) that goes on.
        num_runs: how often the pair runs in a step.
    """

    iteration: Iteration
    hull: tuple[Retained, ...]
    path: tuple[int, ...] = ()
    num_runs: int = 1

    @property
    def bytes_as_written(self) -> int:
        """Bytes of the residuals that the loops keep as they are written, and once the
        bytes that an iteration has less because its inner loops keep less."""
        inside = self.iteration.inside
        less = sum(p.iteration.pair.residual_bytes - p.kept_bytes for p in inside)
        return self.iteration.pair.residual_bytes + less

    @functools.cached_property
    def corners(self) -> tuple[PlannedPair, ...]:
        """Plans in which all iterations do the same: each keeps fewer bytes than the one
        before. Those with groups come last."""
        alike = [mixture(self.iteration, each, each, 0) for each in self.hull]
        corners = [*alike, *_convex([alike[-1], *self._grouped()])[1:]]
        return tuple(map(self._placed, corners))

    def between(self, corner: int, saved_bytes: int) -> PlannedPair:
        """The plan that saves bytes against a corner: the next corner, or some iterations
        of each where the next is without groups.

        Never a single iteration of one: XLA takes such a loop apart. Its recomputation is
        then merged with the first computation, and its values are in nobody's order.

        Arguments:
            corner: the number of a corner that is not the last.
            saved_bytes: at least 1.
        """
        pair = self.iteration.pair
        if corner + 1 >= len(self.hull) or not pair.may_be_divided:
            return self.corners[corner + 1]
        more, less = self.hull[corner : corner + 2]
        num_less = max(2, -(-saved_bytes // (more.kept_bytes - less.kept_bytes)))
        if pair.length - num_less < 2:
            return self.corners[corner + 1]
        return self._placed(mixture(self.iteration, more, less, num_less))

    def mixtures(self, kept_bytes: int) -> Iterator[PlannedPair]:
        """Plans that keep at most so many bytes, and not a choice more than they could:
        some iterations at one choice and the others at one that is not its neighbour.

        Choices that save nearly nothing against a mixture of those around them are
        neighbours of both all the same.
        """
        pair = self.iteration.pair
        if not pair.may_be_divided:
            return
        for i, more in enumerate(self.hull):
            for less in self.hull[i + 2 :]:
                each = more.kept_bytes - less.kept_bytes
                excess = pair.length * more.kept_bytes - kept_bytes
                num_less = max(2, -(-excess // each))
                if num_less <= pair.length - 2:
                    yield self._placed(mixture(self.iteration, more, less, num_less))

    def _placed(self, planned: PlannedPair) -> PlannedPair:
        return dataclasses.replace(planned, path=self.path, num_runs=self.num_runs)

    def _grouped(self) -> Iterator[PlannedPair]:
        """Plans with groups of all sizes worth a try: about powers of two, and for each
        choice of what is retained about the size that keeps least."""
        iteration = self.iteration
        length, carried_bytes = iteration.pair.length, iteration.carried_bytes
        if not iteration.may_run_forward_again or not iteration.pair.may_be_divided:
            return
        for retained in self.hull:
            least = math.sqrt(length * carried_bytes / max(retained.kept_bytes, 1))
            sizes = {2**k for k in range(1, length.bit_length())} | {round(least)}
            sizes = {_of_equal_groups(s, length) for s in sizes if 1 < s <= length // 2}
            for size in sorted(sizes):
                planned = in_groups(iteration, retained, size)
                if all(p.group == 1 or p.count > p.group for p in planned.parts):
                    yield planned


def _of_equal_groups(size: int, length: int) -> int:
    """The size nearest to one, by ratio, that leaves no iteration over: those would take
    two loops more, which XLA has to compile. The size itself if none is within a factor of
    two."""
    near = range(max(2, size // 2 + 1), min(2 * size, length // 2 + 1))
    divisors = [d for d in near if length % d == 0]
    return min(divisors, key=lambda d: max(d / size, size / d), default=size)


def _convex(plans: list[PlannedPair]) -> list[PlannedPair]:
    """The lower convex hull of plans by bytes and seconds, from the first plan on."""
    first = plans[0]
    better = [p for p in plans if p.kept_bytes < first.kept_bytes]
    hull = [first]
    for plan in sorted(better, key=lambda p: (-p.kept_bytes, p.seconds)):
        if plan.kept_bytes == hull[-1].kept_bytes:
            continue
        while len(hull) > 1 and _price(hull[-2], plan) <= _price(hull[-2], hull[-1]):
            hull.pop()
        hull.append(plan)
    return hull


def _price(more: PlannedPair, less: PlannedPair) -> float:
    """Seconds for each byte that one plan keeps less than another."""
    return (less.seconds - more.seconds) / (more.kept_bytes - less.kept_bytes)
