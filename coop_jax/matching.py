"""Matching: which value of the program a buffer of XLA's holds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from coop_jax import _compat
from coop_jax.costs import aval_bytes, may_vanish
from coop_jax.program import Program, writes
from coop_jax.xla_schedule import StoredBuffer


def stored_value(
    program: Program,
    consumers: dict[Any, list[int]],
    buffer: StoredBuffer,
    named: list[int],
    fused: set[int],
    num_partitions: int,
) -> Any | None:
    """The value of the program that a buffer holds, or a shard of it."""
    counts = [n for n in range(1, num_partitions + 1) if num_partitions % n == 0]
    for size in buffer.value_sizes or (buffer.size_bytes,):
        sizes = {size * shards for shards in counts}
        value = _matching_value(program, consumers, named, fused, sizes)
        if value is not None:
            return value
    return None


def _matching_value(
    program: Program,
    consumers: dict[Any, list[int]],
    named: list[int],
    fused: set[int],
    sizes: set[int],
) -> Any | None:
    """The value of the program that a buffer holds, if one has one of the `sizes`.

    First the equation that the instruction itself names. XLA keeps the name of one of
    the equations it fused, not always of the last one, so then every equation inside
    the fusion, preferring one whose result is read outside it, and the latest of these.
    """
    inside = fused | set(named)

    def sized(index: int) -> list[Any]:
        if index >= len(program.eqns):
            return []
        return [v for v in writes(program.eqns[index]) if aval_bytes(v.aval) in sizes]

    results = {v for v in program.outvars if not isinstance(v, _compat.Literal)}

    def read_outside(var: Any) -> bool:
        """A copy or a view may have left no name behind: who reads what it makes?"""
        if var in results:
            return True
        return any(
            i not in inside
            and (
                not may_vanish(program.eqns[i])
                or any(map(read_outside, writes(program.eqns[i])))
            )
            for i in consumers[var]
        )

    for index in named:
        for var in sized(index):
            if read_outside(var) or not fused:
                return var
    ranked = [(read_outside(var), index, var) for index in inside for var in sized(index)]
    if not ranked:
        return None
    return max(ranked, key=lambda entry: entry[:2])[2]


def consumers_of(program: Program) -> dict[Any, list[int]]:
    """Equations by the value that they read."""
    consumers: dict[Any, list[int]] = defaultdict(list)
    for i, eqn in enumerate(program.eqns):
        for var in eqn.invars:
            if not isinstance(var, _compat.Literal):
                consumers[var].append(i)
    return consumers
