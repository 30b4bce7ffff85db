"""Buffer to value: from a buffer of XLA's to the value of the program that it holds."""

from __future__ import annotations

from typing import Any

from coop_jax.trace.costs import aval_bytes, may_vanish
from coop_jax.trace.program import CALLER, Program, writes
from coop_jax.xla.buffers_from_schedule import StoredBuffer


def stored_value(
    program: Program,
    consumers: dict[Any, list[int]],
    buffer: StoredBuffer,
    named: list[int],
    fused: set[int],
    num_partitions: int,
) -> Any | None:
    """The value that a buffer holds, or holds a shard of; None if none is found."""
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
    """The value that a buffer holds, with one of the `sizes` in bytes; else None.

    First the equation that the instruction itself names. XLA keeps the name of one of
    the equations it fused, not always of the last one, so then every equation inside
    the fusion, preferring one whose result is read outside it, and the latest of these.
    """
    inside = fused | set(named)

    def sized(index: int) -> list[Any]:
        if index >= len(program.eqns):
            return []
        return [v for v in writes(program.eqns[index]) if aval_bytes(v.aval) in sizes]

    def read_outside(var: Any) -> bool:
        return any(is_outside(i) for i in consumers[var])

    def is_outside(reader: int) -> bool:
        """Whether a reader is outside: of a copy or view without a name, its readers."""
        if reader in inside:
            return False
        if reader == CALLER or not may_vanish(program.eqns[reader]):
            return True
        return any(map(read_outside, writes(program.eqns[reader])))

    for index in named:
        for var in sized(index):
            if read_outside(var) or not fused:
                return var
    ranked = [(read_outside(var), index, var) for index in inside for var in sized(index)]
    if not ranked:
        return None
    return max(ranked, key=lambda entry: entry[:2])[2]
