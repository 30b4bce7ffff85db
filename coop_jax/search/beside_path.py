"""Beside the path: plans of pairs of loops for the room that a search leaves.

XLA decides for every loop anew what it gathers before it is read and what lies in a second
memory. So an executable for several devices takes a little more or less than modelled, and
its bytes depend on whether the iterations are in one loop or in two. The fastest of those
that were compiled may then leave room for plans that are modelled to be faster: corners of
the path that need less than was taken from mixtures, and mixtures of choices that are no
neighbours, as one divides layers by hand.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from coop_jax.loops.menu import Menu
from coop_jax.loops.parts import PlannedPair
from coop_jax.search.planned_loops import PlannedLoops

Shape = tuple[tuple[int, int, int], ...]


class Compiled(NamedTuple):
    """A plan of the pairs of a menu, compiled.

    Attributes:
        pairs: the plan.
        saved_bytes: bytes that it saves against the first plan of the path, of all devices.
        total_bytes: XLA's figure for one device.
        seconds: of the executable's instructions; 0 if they are not known, or XLA refuses.
    """

    pairs: Sequence[PlannedPair]
    saved_bytes: int
    total_bytes: int
    seconds: float


def compiled_without_groups(
    measured: Iterable[PlannedLoops], base_bytes: int
) -> list[Compiled]:
    """Those of compiled plans of one stretch that have no groups.

    Arguments:
        base_bytes: bytes that the levels around the stretch save, which are in the rest.
    """
    return [
        Compiled(
            one.loops.levels[-1],
            one.saved_bytes - base_bytes,
            one.total_bytes,
            0.0 if one.compiled is None else one.executable_seconds,
        )
        for one in measured
        if not has_groups(one.loops.levels[-1])
    ]


def fastest_beside(
    menu: Menu,
    compiled: Collection[Compiled],
    seconds: float,
    budget_bytes: int,
    num_devices: int,
) -> tuple[list[PlannedPair], int] | None:
    """The plan whose executable is expected to be the fastest of those that are expected
    to keep a budget, and the bytes that it is expected to need; None if none is left that
    is expected to take less than so many seconds.

    It is expected to take as long as the compiled plan that does the same in most
    iterations, and by the model for the others. XLA makes most of a loop that is not
    divided, so what such plans take is known of such plans alone.

    Arguments:
        menu: the menu, of which plans without groups are taken.
        compiled: plans that were compiled, at least one.
        seconds: of the fastest executable of them that keeps the budget.
        budget_bytes: the budget of one device.
        num_devices: the number of devices that values are divided over.
    """
    known = {shape_of(one.pairs) for one in compiled}
    timed = [one for one in compiled if one.seconds] or compiled
    undivided = [one for one in timed if _num_loops(one.pairs) == len(menu.choices)]
    found = None
    for pairs in _plans(menu, compiled, budget_bytes, num_devices):
        saved_bytes = menu.first_bytes - sum(pair.kept_bytes for pair in pairs)
        rest_bytes = _rest_bytes(compiled, saved_bytes, _num_loops(pairs), num_devices)
        expected_bytes = rest_bytes - saved_bytes // num_devices
        if expected_bytes > budget_bytes or shape_of(pairs) in known:
            continue
        is_divided = _num_loops(pairs) > len(menu.choices)
        alike = max(
            timed if is_divided else undivided or timed,
            key=lambda one: _num_in_common(one.pairs, pairs),
        )
        modelled = _modelled_seconds(pairs) - _modelled_seconds(alike.pairs)
        if alike.seconds + modelled / num_devices < seconds:
            found, seconds = (pairs, expected_bytes), alike.seconds + modelled / num_devices
    return found


def _modelled_seconds(pairs: Sequence[PlannedPair]) -> float:
    """Of what pairs recompute, write and read, on all devices together."""
    return sum(pair.seconds for pair in pairs)


def _num_in_common(some: Sequence[PlannedPair], others: Sequence[PlannedPair]) -> int:
    """The number of iterations that do the same in two plans."""
    common = 0
    for one, other in zip(some, others, strict=True):
        counts = [
            collections.Counter({part.retained.kept_bytes: part.count for part in p.parts})
            for p in (one, other)
        ]
        common += one.num_runs * (counts[0] & counts[1]).total()
    return common


def has_groups(pairs: Sequence[PlannedPair]) -> bool:
    """Whether iterations of any pair are in groups."""
    return any(part.group > 1 for pair in pairs for part in pair.parts)


def _plans(
    menu: Menu, compiled: Collection[Compiled], budget_bytes: int, num_devices: int
) -> Iterator[list[PlannedPair]]:
    """The corners of the path without groups, and the mixtures that just keep a budget."""
    _, last = menu.stretches[0]
    for place in menu.corner_places:
        if place <= last:
            yield menu.saving(place)
    for place in {one.saved_bytes for one in compiled}:
        num_loops = len(menu.choices) + 1
        rest_bytes = _rest_bytes(compiled, place, num_loops, num_devices)
        saved_bytes = (rest_bytes - budget_bytes) * num_devices
        if 0 <= saved_bytes <= last:
            yield menu.saving(saved_bytes)
            yield from menu.beside(saved_bytes)


def _rest_bytes(
    compiled: Collection[Compiled], saved_bytes: int, num_loops: int, num_devices: int
) -> int:
    """What XLA needs beside what is kept: as for the plan that saves about as much, of
    those with as many loops if there are any."""
    alike = [one for one in compiled if _num_loops(one.pairs) == num_loops]
    near = min(alike or compiled, key=lambda one: abs(one.saved_bytes - saved_bytes))
    return near.total_bytes + near.saved_bytes // num_devices


def _num_loops(pairs: Sequence[PlannedPair]) -> int:
    return sum(len(pair.parts) for pair in pairs)


def shape_of(pairs: Sequence[PlannedPair]) -> Shape:
    """What tells a plan of pairs from the others: how many iterations keep how many bytes,
    in groups of how many."""
    return tuple(
        (part.count, part.retained.kept_bytes, part.group)
        for pair in pairs
        for part in pair.parts
    )
