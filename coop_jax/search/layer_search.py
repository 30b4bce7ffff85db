"""Layer search: the step with its layers run again, as by `jax.checkpoint`, for a budget.

The layers are the blocks that repeat, or two of them at a time. On a path from the fewest
bytes to the least time the choice that is expected to keep the budget with the least
recomputation is compiled (`emit.layers_again`), and XLA's figure corrects the next one.
There is no schedule: what is made again, and where, is in the program, so that it fuses as
under a policy.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from coop_jax.emit.inside_readers import InsideReaders
from coop_jax.emit.layers_again import Layers
from coop_jax.search.candidates import (
    MAX_COMPILATIONS,
    SLACK_WORTH_USING,
    Measured,
    best_of,
)

# Prices of bytes, from one to the next half as high, on either side of the one at which all
# that is idle is worth the time of the step.
_HALVINGS = 6


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What is kept, the bytes alive with it and the modelled seconds of what runs again."""

    inside: InsideReaders
    live_bytes: int
    seconds: float


class LayerSearch:
    """The search for what to keep of layers that run again.

    Arguments:
        layers: the forward pass of the step.
        fixed_bytes: bytes that no choice changes.
        measure: compiles the step with a choice.

    Attributes:
        num_compilations: compilations so far.
    """

    def __init__(
        self,
        layers: Layers,
        fixed_bytes: int,
        measure: Callable[[InsideReaders, int], Measured | None],
    ) -> None:
        self.num_compilations = 0
        self._layers = layers
        self._fixed_bytes = fixed_bytes
        self._measure = measure
        self._known: dict[tuple[tuple[int, ...], int], _Choice] = {}
        self._measured: dict[InsideReaders, Measured | None] = {}
        # What a user would wrap, and two of them at a time.
        blocks = layers.blocks()
        divisions = blocks, blocks[::-2][::-1]
        self._divisions = [found for found in dict.fromkeys(divisions) if found]
        self._priced = {division: layers.priced(division) for division in self._divisions}

    def best(self, budget_bytes: int) -> tuple[Measured, InsideReaders] | None:
        """The fastest of the choices that were compiled and keep the budget; None if none
        does."""
        errors: dict[tuple[int, ...], int] = {}  # By division.
        tried: dict[InsideReaders, Measured] = {}
        while len(tried) < MAX_COMPILATIONS:
            choice = self._choice(budget_bytes - self._fixed_bytes, errors)
            if choice is None and best_of(tried.values(), budget_bytes) is None:
                choice = self._least()
            if choice is None or choice.inside in tried:
                break
            division = choice.inside.layers
            expected = self._fixed_bytes + choice.live_bytes
            error = errors.get(division, 0)
            measured = self._compiled(choice.inside, expected + error)
            if measured is None:
                break
            tried[choice.inside] = measured
            errors[division] = measured.total_bytes - expected
            free = budget_bytes - measured.total_bytes
            room = budget_bytes - self._fixed_bytes
            if 0 <= free <= SLACK_WORTH_USING * room:
                break
        found = best_of(tried.values(), budget_bytes)
        if found is None:
            found = self._at_the_end(budget_bytes, errors, tried)
        if found is None:
            return None
        return found, next(inside for inside, one in tried.items() if one is found)

    def smallest(self) -> tuple[Measured, InsideReaders] | None:
        """The step that needs the fewest bytes of those compiled, and what it makes again:
        the choice with the fewest bytes alive of every division among them."""
        for division in self._divisions:
            end = self._at(division, 0)
            self._compiled(end.inside, self._fixed_bytes + end.live_bytes)
        return self.smallest_compiled

    @property
    def smallest_compiled(self) -> tuple[Measured, InsideReaders] | None:
        """The step that needs the fewest bytes of those compiled so far, and what it makes
        again; None if none was."""
        measured = [
            (one, inside)
            for inside, one in self._measured.items()
            if one is not None and one.compiled is not None
        ]
        return min(measured, key=lambda pair: pair[0].total_bytes, default=None)

    def _at_the_end(
        self,
        budget_bytes: int,
        errors: Mapping[tuple[int, ...], int],
        tried: dict[InsideReaders, Measured],
    ) -> Measured | None:
        """What keeps the fewest bytes of a division, the likeliest first: XLA may need far
        more than expected of one of them, and not of another."""
        ends = [
            (self._at(division, 0).live_bytes + errors.get(division, 0), division)
            for division in self._divisions
        ]
        for live_bytes, division in sorted(ends):
            end = self._at(division, 0).inside
            if end in tried:
                continue
            measured = self._compiled(end, self._fixed_bytes + live_bytes)
            if measured is not None:
                tried[end] = measured
            if (found := best_of(tried.values(), budget_bytes)) is not None:
                return found
        return None

    def _compiled(self, inside: InsideReaders, expected_bytes: int) -> Measured | None:
        if inside not in self._measured:
            self.num_compilations += 1
            self._measured[inside] = self._measure(inside, expected_bytes)
        return self._measured[inside]

    def _choice(self, room: int, errors: Mapping[tuple[int, ...], int]) -> _Choice | None:
        """The choice with the least recomputation of those expected to fit."""
        # That of another division is the best guess for one that was not compiled.
        likely = max(errors.values(), default=0)
        known = {
            division: room - errors.get(division, likely) for division in self._divisions
        }
        found = [self._fitting(division, left) for division, left in known.items()]
        fitting = [choice for choice in found if choice is not None]
        return min(fitting, key=lambda one: (one.seconds, one.live_bytes), default=None)

    def _least(self) -> _Choice | None:
        """The choice with the fewest bytes alive: XLA may need less than expected."""
        ends = (self._at(boundaries, 0) for boundaries in self._divisions)
        return min(ends, key=lambda one: (one.live_bytes, one.seconds), default=None)

    def _fitting(self, boundaries: tuple[int, ...], room: int) -> _Choice | None:
        """The last choice on the path of a division that is expected to fit."""
        low, high = 0, 2 * _HALVINGS * len(self._priced[boundaries])
        if self._at(boundaries, low).live_bytes > room:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self._at(boundaries, middle).live_bytes <= room:
                low = middle
            else:
                high = middle - 1
        return self._at(boundaries, low)

    def _at(self, boundaries: tuple[int, ...], place: int) -> _Choice:
        """The choice at a place of the path: the price of bytes falls for one equation
        after the other, the last ones first, whose values are read again soonest. By layers
        it falls in large steps: of a layer's products of one shape all are kept or none."""
        key = boundaries, place
        if key not in self._known:
            layers, priced = self._layers, self._priced[boundaries]
            halvings, further = divmod(place, len(priced)) if priced else (0, 0)
            middle = layers.idle_bytes / layers.step_seconds
            least = middle * 2.0 ** (halvings - _HALVINGS)
            first = priced[-further] if further else math.inf

            def worth(index: int) -> float:
                return least * (1 + (index >= first))

            inside = layers.kept(boundaries, worth)
            self._known[key] = _Choice(
                inside, layers.live_bytes(inside), layers.seconds(inside)
            )
        return self._known[key]
