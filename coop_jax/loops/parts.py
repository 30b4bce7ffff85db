"""Parts: how the iterations of a pair are divided among choices of what is kept."""

from __future__ import annotations

import dataclasses

from coop_jax.loops.frontier import Retained
from coop_jax.loops.iteration import Iteration


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Consecutive iterations that keep the same values.

    Attributes:
        start: the first of them, by its entry in the stacks.
        count: how many.
        retained: what they keep.
        group: 1, or the iterations of a group: then only what is carried into each group is
            kept, and what is `retained` only while the group is run again and backward.
            Divides `count`.
    """

    start: int
    count: int
    retained: Retained
    group: int = 1

    def kept_bytes(self, iteration: Iteration) -> int:
        """Bytes of all that is kept from the forward to the backward loop."""
        if self.group == 1:
            return self.count * self.retained.kept_bytes
        carried = self.count // self.group * iteration.carried_bytes
        return carried + self.group * self.retained.kept_bytes

    def recompute_seconds(self, iteration: Iteration) -> float:
        """Modelled time of recomputation."""
        forward = iteration.forward_seconds if self.group > 1 else 0.0
        inside = sum(pair.recompute_seconds for pair in self.inside(iteration))
        return self.count * (self.retained.recompute_seconds + forward + inside)

    def inside(self, iteration: Iteration) -> list[PlannedPair]:
        """The inner pairs that recompute part of what they would keep as written. One
        whose forward loop runs again is not among them: it is planned where it does."""
        again = {
            eqn.params["length"]
            for eqn in self.retained.recomputed
            if eqn.primitive.name == "scan"
        }
        return [p for p in iteration.inside if p.iteration.pair.length not in again]


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedPair:
    """A pair of loops with its parts.

    Attributes:
        iteration: one iteration of the pair.
        parts: these cover all iterations, in order of entries.
        path, num_runs: as of `menu.Choices`.
    """

    iteration: Iteration
    parts: tuple[Part, ...]
    path: tuple[int, ...] = ()
    num_runs: int = 1

    @property
    def kept_bytes(self) -> int:
        """Bytes of all that one run keeps from the forward to the backward loop."""
        return sum(part.kept_bytes(self.iteration) for part in self.parts)

    @property
    def seconds(self) -> float:
        """Modelled time in a step of recomputation, and of writing and reading what is
        kept."""
        return self.num_runs * sum(
            part.count * part.retained.seconds for part in self.parts
        )

    @property
    def recompute_seconds(self) -> float:
        """Modelled time in a step of recomputation alone."""
        return self.num_runs * sum(
            part.recompute_seconds(self.iteration) for part in self.parts
        )


def mixture(
    iteration: Iteration, more: Retained, less: Retained, num_less: int
) -> PlannedPair:
    """Some iterations at one choice and the others at another.

    Those that keep less run first: their recomputation comes last, when the stacks of the
    others are freed.

    Arguments:
        iteration: the iteration.
        more, less: the choices.
        num_less: the number of iterations at `less`.
    """
    forward = iteration.pair.forward
    length, num_more = forward.length, forward.length - num_less
    if forward.is_reversed:
        parts = Part(0, num_more, more), Part(num_more, num_less, less)
    else:
        parts = Part(0, num_less, less), Part(num_less, length - num_less, more)
    return PlannedPair(iteration, tuple(part for part in parts if part.count))


def in_groups(iteration: Iteration, retained: Retained, group: int) -> PlannedPair:
    """Iterations in groups; those that are left over, run last, keep what is retained.

    A single one is not left over, but with a group more: XLA takes a loop of one iteration
    apart, and orders what was in it as it likes.

    Arguments:
        iteration: the iteration.
        retained: what an iteration keeps while its group runs again.
        group: iterations of a group.
    """
    forward = iteration.pair.forward
    rest = forward.length % group
    if rest == 1:
        rest += group
    grouped = forward.length - rest
    if forward.is_reversed:
        parts = Part(0, rest, retained), Part(rest, grouped, retained, group)
    else:
        parts = Part(0, grouped, retained, group), Part(grouped, rest, retained)
    return PlannedPair(iteration, tuple(part for part in parts if part.count))
