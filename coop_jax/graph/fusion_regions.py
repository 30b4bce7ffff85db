"""Fusion regions: the program as operations on stored values, in XLA's order.

An operation computes stored values from stored values. The equations in between, whose
results never reach memory, belong to every operation that needs them (XLA fuses, and
duplicates, them in the same way): they are its *fusion region*. A recomputation evaluates
a fusion region again, so no value that XLA never stored is taken to be in memory.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import is_fusible, is_view
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import is_collective, may_move, may_run_again, may_vanish
from coop_jax.trace.ties import ties

# A chain of unstored equations longer than this that several operations share is taken
# to be stored at its end: XLA stops duplicating long before.
_LONGEST_SHARED_REGION = 64
# A view that takes more than so many times the bytes of its source is a copy of it.
_COPY_FROM = 1.25
# XLA fuses nothing into the bodies that these call.
_WITH_BODIES = frozenset(("cond", "scan", "while"))
# Primitives that XLA:TPU evaluates in every fusion that reads them, if not stored.
_FUSED_ON_TPU = frozenset(
    "scatter scatter-add reduce_sum reduce_max reduce_min "
    "random_bits random_fold_in random_split random_seed".split()
)


@dataclasses.dataclass(frozen=True, slots=True)
class FusionRegion:
    """`equations` (indices, ascending) compute the values `makes` from `reads`.

    The last equation, the anchor, makes them; what others make is unstored, or computed
    again for a comparison (`trace.ties`) even if it is stored: `again`.
    """

    equations: tuple[int, ...]
    reads: frozenset[Any]
    makes: tuple[Any, ...]
    again: frozenset[Any] = frozenset()

    @property
    def anchor(self) -> int:
        return self.equations[-1]


def regions_in_order(
    program: Program, materialization: StoredValues
) -> Iterator[FusionRegion]:
    """The program's operations in the order in which XLA runs them."""
    stored = _stored_values(program, materialization)
    return _in_order(program, materialization, _regions(program, stored))


def _stored_values(program: Program, materialization: StoredValues) -> set[Any]:
    """Values that are tensors of the graph.

    The values that XLA stored, with views replaced by their sources (unless both are
    stored, and the view takes more); the step's outputs; results of operations with several
    results, that may not run again or that devices send each other; and values that are
    expensive to compute and reach more than one stored value, or that such an operation or
    a `cond` reads: XLA neither computes those again in every consumer nor fuses them into
    what it calls.
    """
    view_of: dict[Any, Any] = {}
    inputs = {*program.invars, *program.constvars}
    for eqn in program.eqns:
        if is_view(eqn) and not isinstance(eqn.invars[0], Literal):
            source = eqn.invars[0]
            view_of[eqn.outvars[0]] = view_of.get(source, source)

    def is_copy(v: Any) -> bool:
        """Whether a stored view is a copy.

        XLA:TPU may give a view a layout of its own: with its last dimension split, tiles
        pad it.
        """
        source_bytes = materialization.stored_bytes.get(view_of.get(v), 0)
        return 0 < _COPY_FROM * source_bytes < materialization.stored_bytes[v]

    stored = {
        v if is_copy(v) else view_of.get(v, v) for v in materialization.stored_bytes
    } - inputs
    stored |= {v for v in program.outvars if not isinstance(v, Literal)} - inputs
    for eqn in program.eqns:
        is_apart = is_collective(eqn) or not may_run_again(eqn)
        if is_apart or _has_several_results(eqn):
            stored.update(writes(eqn))
    called_with = {v for eqn in program.eqns if _is_called(eqn) for v in reads(eqn)}

    # Sinks, backwards: the only operation that an unstored value ends up in, or `many`.
    many = object()
    sink: dict[Any, Any] = {}
    consumers: dict[Any, set[int]] = defaultdict(set)
    for i, eqn in enumerate(program.eqns):
        for v in reads(eqn):
            consumers[v].add(i)
    heavy, region_size = _region_weights(program, stored, materialization.fuses_most)

    def sink_of(i: int) -> Any:
        eqn = program.eqns[i]
        made = writes(eqn)
        if any(v in stored for v in made) or not may_vanish(eqn):
            return i
        ends = {sink.get(v) for v in made} - {None}
        return ends.pop() if len(ends) == 1 else (many if ends else None)

    for i in range(len(program.eqns) - 1, -1, -1):
        for v in writes(program.eqns[i]):
            if v in stored:
                continue
            ends = {sink_of(j) for j in consumers[v]} - {None}
            shared = many in ends or len(ends) > 1
            # XLA may have lost the names of what it made of a convolution.
            if heavy[i] and v in called_with:
                shared = True
            if shared and (heavy[i] or region_size[i] > _LONGEST_SHARED_REGION):
                stored.add(view_of.get(v, v) if is_view(program.eqns[i]) else v)
                sink[v] = i
            else:
                sink[v] = many if shared else next(iter(ends), None)
    return stored - inputs


def _is_called(eqn: Any) -> bool:
    """Whether the operands of an equation are in memory before it begins."""
    return eqn.primitive.name in _WITH_BODIES or _has_several_results(eqn)


def _has_several_results(eqn: Any) -> bool:
    return len(eqn.outvars) > 1 and not is_fusible(eqn)


def _region_weights(
    program: Program, stored: set[Any], fuses_most: bool
) -> tuple[list[bool], list[int]]:
    """By equation: whether its fusion region has unfusible work, and its length."""

    def is_light(eqn: Any) -> bool:
        return is_fusible(eqn) or (fuses_most and eqn.primitive.name in _FUSED_ON_TPU)

    heavy_value: dict[Any, bool] = {}
    size_value: dict[Any, int] = {}
    heavy, size = [], []
    for eqn in program.eqns:
        inner = [v for v in reads(eqn) if v not in stored]
        heavy.append(not is_light(eqn) or any(heavy_value.get(v, False) for v in inner))
        size.append(1 + sum(size_value.get(v, 0) for v in inner))
        for v in writes(eqn):
            if v not in stored:
                heavy_value[v], size_value[v] = heavy[-1], size[-1]
    return heavy, size


def _regions(program: Program, stored: set[Any]) -> list[FusionRegion]:
    """The fusion region of every equation that makes a stored value or may not vanish."""
    eqns = program.eqns
    known = {*stored, *program.constvars, *program.invars}
    producer = {v: i for i, eqn in enumerate(eqns) for v in writes(eqn)}
    tied = ties(eqns)
    regions = []
    for anchor, eqn in enumerate(eqns):
        if stored.isdisjoint(writes(eqn)) and may_vanish(eqn):
            continue
        again: frozenset[Any] = frozenset()
        while True:
            region, read = _region(program, anchor, known, again, producer)
            compared = [tied[i] for i in region if i in tied]
            more = again.union(*compared) - set(writes(eqn))
            if more == again:
                break
            again = more
        makes = tuple(v for v in writes(eqn) if v in stored)
        inside = frozenset(v for v in again if v in stored and producer[v] in region)
        regions.append(FusionRegion(tuple(sorted(region)), frozenset(read), makes, inside))
    return regions


def _region(
    program: Program,
    anchor: int,
    known: set[Any],
    again: frozenset[Any],
    producer: dict[Any, int],
) -> tuple[set[int], set[Any]]:
    """The equations that compute the results of one from known values, but for those that
    are computed again, and those values."""
    region, read, todo = {anchor}, set(), [anchor]
    while todo:
        for v in reads(program.eqns[todo.pop()]):
            if v in known and v not in again:
                read.add(v)
            elif (made_by := producer[v]) not in region:
                region.add(made_by)
                todo.append(made_by)
    return region, read


def _in_order(
    program: Program, materialization: StoredValues, regions: list[FusionRegion]
) -> Iterator[FusionRegion]:
    """Fusion regions in the order in which XLA runs them.

    XLA schedules for memory: it makes weight gradients and updates as soon as it can,
    where the program has them at its end. An operation that its schedule doesn't name
    runs just before the first one that needs it; operations that may not move keep the
    program's order.
    """
    made_by = {v: k for k, region in enumerate(regions) for v in region.makes}
    needs = [{made_by[v] for v in region.reads if v in made_by} for region in regions]
    in_place = [k for k, c in enumerate(regions) if not may_move(program.eqns[c.anchor])]
    for before, after in itertools.pairwise(in_place):
        needs[after].add(before)
    needed_by: list[list[int]] = [[] for _ in regions]
    for k, before in enumerate(needs):
        for j in before:
            needed_by[j].append(k)
    never = math.inf
    position = [never] * len(regions)
    for k in range(len(regions) - 1, -1, -1):
        known = [
            materialization.position[v]
            for v in regions[k].makes
            if v in materialization.position
        ]
        if known:
            position[k] = max(known)
        elif not may_move(program.eqns[regions[k].anchor]):
            position[k] = -1  # as soon as its operands exist: it holds them
        elif materialization.position:
            position[k] = min((position[j] for j in needed_by[k]), default=never)
        else:
            position[k] = k
    waiting = [len(before) for before in needs]
    ready = [(position[k], k) for k, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    while ready:
        _, k = heapq.heappop(ready)
        yield regions[k]
        for j in needed_by[k]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (position[j], j))
