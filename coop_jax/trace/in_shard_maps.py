"""In shard maps: a program of whole arrays and of shards, as a function of whole arrays.

The equations of shards (`trace.shards`) run under `shard_map`s, as many of them in one as
their operands allow. A shard that is read in another `shard_map` is in between the part of
a whole array that has one more dimension, which is divided over the devices: no data moves.
A fence of whole arrays and of shards is one of such arrays.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from coop_jax.base import _compat, _compat_typed
from coop_jax.base._compat import Literal
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.shard_types import mesh_of_operands, mesh_of_shards
from coop_jax.trace.shards import (
    BOUNDARIES,
    ShardMap,
    to_shards_p,
    to_whole_p,
)

# Boundaries of segments (`emit.fence`, `emit.order_after`), which pass on any operands.
_MAY_HAVE_BOTH = ("coop_fence", "coop_after")


def has_shards(program: Program) -> bool:
    """Whether a program has equations of shards beside those of whole arrays."""
    return any(eqn.primitive in BOUNDARIES for eqn in program.eqns)


def runnable(program: Program) -> Callable[..., list[Any]]:
    """A program as a function of its inputs."""
    if has_shards(program):
        return in_shard_maps(program)
    return _compat.jaxpr_as_fun(program.to_jaxpr())


def closed_jaxpr(program: Program) -> Any:
    """A program as a closed jaxpr, in which equations of shards are under `shard_map`s."""
    if not has_shards(program):
        return program.to_jaxpr()
    avals = [v.aval for v in program.invars]
    with _compat_typed.on_mesh_of(avals):
        structs = map(_compat_typed.struct_of, avals)
        return jax.make_jaxpr(in_shard_maps(program))(*structs)


def in_shard_maps(program: Program) -> Callable[..., list[Any]]:
    """A program as a function of its constants' and its inputs' whole arrays."""
    maps = {
        eqn.params["map"].abstract_mesh: eqn.params["map"]
        for eqn in program.eqns
        if eqn.primitive in BOUNDARIES
    }
    runs = _runs(program.eqns, maps)
    needed = _needed_after(runs, program.outvars)

    def run(*inputs: Any) -> list[Any]:
        known = _Arrays()
        known.whole.update(zip(program.constvars, program.consts, strict=True))
        known.whole.update(zip(program.invars, inputs, strict=True))
        for (mesh, eqns), after in zip(runs, needed, strict=True):
            if mesh is not None:
                _run_shards(eqns, maps[mesh], after, known)
            elif _is_boundary_of_both(eqns[0]):
                _run_both(eqns[0], maps, known)
            else:
                _run_whole(eqns, after, known)
        return [_value(v, known.whole) for v in program.outvars]

    return run


@dataclasses.dataclass
class _Arrays:
    """What was computed so far.

    Attributes:
        whole: by variable, whole arrays.
        divided: by variable of a shard, the whole array with one more dimension.
    """

    whole: dict[Any, Any] = dataclasses.field(default_factory=dict)
    divided: dict[Any, Any] = dataclasses.field(default_factory=dict)


def _is_boundary_of_both(eqn: Any) -> bool:
    """Whether the equation passes on whole arrays and shards."""
    if eqn.primitive.name not in _MAY_HAVE_BOTH:
        return False
    return len({mesh_of_shards(v.aval) for v in reads(eqn)}) > 1


def _place(eqn: Any) -> Any:
    """Where an equation runs: a mesh, None for whole arrays, or by itself."""
    if _is_boundary_of_both(eqn):
        return id(eqn)
    if eqn.primitive in BOUNDARIES:
        return eqn.params["map"].abstract_mesh
    return mesh_of_operands(eqn)


def _runs(eqns: Sequence[Any], maps: dict[Any, ShardMap]) -> list[tuple[Any, list[Any]]]:
    """The equations in an order in which those of one place stand together, each run with
    its mesh; None for whole arrays. Equations with effects keep their order."""
    places = [_place(eqn) for eqn in eqns]
    runs = []
    for place, run in itertools.groupby(_together(eqns, places), key=places.__getitem__):
        mesh = place if place in maps else None
        runs += [(mesh, part) for part in _parts(eqns[index] for index in run)]
    return runs


def _parts(run: Iterable[Any]) -> Iterator[list[Any]]:
    """The equations of one place, apart where one divides a whole array that another one
    has put together: of that every device holds its own."""
    part: list[Any] = []
    put_together: set[Any] = set()
    for eqn in run:
        if put_together.intersection(reads(eqn)):
            yield part
            part, put_together = [], set()
        part.append(eqn)
        if eqn.primitive is to_whole_p:
            put_together.update(writes(eqn))
    yield part


def _together(eqns: Sequence[Any], places: Sequence[Any]) -> list[int]:
    """An order of the equations with few changes of place."""
    made_by = {v: i for i, eqn in enumerate(eqns) for v in writes(eqn)}
    waits = [{made_by[v] for v in reads(eqn) if v in made_by} for eqn in eqns]
    effects = [i for i, eqn in enumerate(eqns) if eqn.effects]
    for before, after in itertools.pairwise(effects):
        waits[after].add(before)
    readers: list[list[int]] = [[] for _ in eqns]
    for index, before in enumerate(waits):
        for other in before:
            readers[other].append(index)
    missing = [len(before) for before in waits]
    ready: dict[Any, list[int]] = {}
    for index, number in enumerate(missing):
        if not number:
            heapq.heappush(ready.setdefault(places[index], []), index)
    order: list[int] = []
    here = None
    while len(order) < len(eqns):
        if not ready.get(here):
            here = min((found[0], place) for place, found in ready.items() if found)[1]
        index = heapq.heappop(ready[here])
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready.setdefault(places[reader], []), reader)
    return order


def _needed_after(
    runs: Sequence[tuple[Any, list[Any]]], outvars: Iterable[Any]
) -> list[set[Any]]:
    """For every run the variables that later ones read, or the caller."""
    needed = {v for v in outvars if not isinstance(v, Literal)}
    after: list[set[Any]] = []
    for _, eqns in reversed(runs):
        after.append(set(needed))
        needed |= {v for eqn in eqns for v in reads(eqn)}
    return after[::-1]


def _run_whole(eqns: Sequence[Any], after: set[Any], known: _Arrays) -> None:
    """Run equations of whole arrays."""
    given, results = _interface(eqns, after)
    run = _function(given, results, eqns)
    made = run(*(known.whole[v] for v in given))
    known.whole.update(zip(results, made, strict=True))


def _run_shards(
    eqns: Sequence[Any], found: ShardMap, after: set[Any], known: _Arrays
) -> None:
    """Run equations of shards in one `shard_map`, those between whole arrays and shards
    with them: they are how its operands and its results are divided."""
    body = [eqn for eqn in eqns if eqn.primitive not in BOUNDARIES]
    enters = [eqn for eqn in eqns if eqn.primitive is to_shards_p]
    leaves = [eqn for eqn in eqns if eqn.primitive is to_whole_p]
    entered = [eqn.outvars[0] for eqn in enters]
    to_leave = [v for eqn in leaves for v in reads(eqn)]
    needed = after | {*to_leave}
    given, results = _interface(body, needed, entered)
    passed = [v for v in entered if v in needed]
    kept = [v for v in [*results, *passed] if v in after]
    left = [eqn.invars[0] for eqn in leaves]
    outside = dict.fromkeys(v for v in [*given, *to_leave] if v not in {*entered, *results})
    axes = {v: found.varying_axes(v.aval) for v in [*outside, *kept]}

    def run(whole: list[Any], divided: list[Any]) -> tuple[list[Any], list[Any]]:
        shards = dict(zip(entered, whole, strict=True))
        for v, value in zip(outside, divided, strict=True):
            shards[v] = jax.lax.squeeze(value, (0,)) if axes[v] else value
        made = _function(given, results, body)(*(shards[v] for v in given))
        shards.update(zip(results, made, strict=True))
        return (
            [_value(v, shards) for v in left],
            [jax.lax.expand_dims(shards[v], (0,)) if axes[v] else shards[v] for v in kept],
        )

    specs = {v: jax.P(axes[v]) if axes[v] else jax.P() for v in axes}
    mapped = jax.shard_map(
        run,
        mesh=found.mesh,
        in_specs=([eqn.params["spec"] for eqn in enters], [specs[v] for v in outside]),
        out_specs=([eqn.params["spec"] for eqn in leaves], [specs[v] for v in kept]),
        axis_names=set(found.manual_axes),
        check_vma=found.check_vma,
    )
    whole, divided = mapped(
        [_value(eqn.invars[0], known.whole) for eqn in enters],
        [known.divided[v] for v in outside],
    )
    known.whole.update((eqn.outvars[0], x) for eqn, x in zip(leaves, whole, strict=True))
    known.divided.update(zip(kept, divided, strict=True))


def _run_both(eqn: Any, maps: dict[Any, ShardMap], known: _Arrays) -> None:
    """Run a fence of whole arrays and of shards."""
    params = dict(eqn.params)
    values, layouts = [], []
    given: Sequence[Any] = params.get("layouts") or [None] * len(eqn.invars)
    for v, order in zip(eqn.invars, given, strict=True):
        mesh = mesh_of_shards(v.aval)
        values.append((known.whole if mesh is None else known.divided)[v])
        is_longer = mesh is not None and maps[mesh].varying_axes(v.aval)
        layouts.append((0, *(d + 1 for d in order)) if order and is_longer else order)
    if any(layouts):
        params["layouts"] = tuple(layouts)
    made: Any = eqn.primitive.bind(*values, **params)
    results = made if eqn.primitive.multiple_results else [made]
    for v, value in zip(eqn.outvars, results, strict=True):
        (known.whole if mesh_of_shards(v.aval) is None else known.divided)[v] = value


def _interface(
    eqns: Sequence[Any], needed: set[Any], given: Sequence[Any] = ()
) -> tuple[list[Any], list[Any]]:
    """What equations read of others, with `given` first, and what they make for others."""
    made = dict.fromkeys(v for eqn in eqns for v in writes(eqn))
    operands = dict.fromkeys(given)
    operands |= dict.fromkeys(v for eqn in eqns for v in reads(eqn) if v not in made)
    return list(operands), [v for v in made if v in needed]


def _function(
    given: Sequence[Any], results: Sequence[Any], eqns: Sequence[Any]
) -> Callable[..., list[Any]]:
    closed = _compat.close_jaxpr((), (), given, results, eqns, None)
    return _compat.jaxpr_as_fun(closed)


def _value(atom: Any, known: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else known[atom]
