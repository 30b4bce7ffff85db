"""Async copies: bytes that XLA:TPU needs for copies between its memories, unlisted.

Every asynchronous copy has a table in main memory for the whole step, in a unit of its
own, and one that copies a slice has two. Other unlisted bytes are few
(`tests/backends/tpu/test_async_copies.py`).
"""

from __future__ import annotations

from coop_jax.targets import TPU_ALIGNMENT
from coop_jax.xla.buffer_assignment import StoredModule

_COPY_TABLES = {"copy-start": 1, "async-start": 2}


def unlisted_of_plans(module: StoredModule) -> int:
    """Bytes that plans of a step as written are expected to need and XLA not to list.

    Plans have about as many copies. But of slices, which are of what waits in between,
    some have far fewer: one table is counted for each.
    """
    counts = _tables(module)
    others = max(0, module.unlisted_bytes - TPU_ALIGNMENT * sum(counts))
    return TPU_ALIGNMENT * len(counts) + others


def _tables(module: StoredModule) -> list[int]:
    """How many every copy has."""
    opcodes = (module.instructions[number].opcode for number in module.schedule)
    return [_COPY_TABLES[opcode] for opcode in opcodes if opcode in _COPY_TABLES]
