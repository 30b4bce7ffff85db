"""Liveness: live bytes of a compiled step, and the heap that XLA packs them into."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.base.sweep import bytes_over_time
from coop_jax.targets import HEAP_ALIGNMENT
from coop_jax.xla.buffers_from_schedule import Flow, kinds_of_storage
from coop_jax.xla.hlo_module import HloModule
from coop_jax.xla.shapes import Index


def live_bytes(
    module: HloModule,
    places: Mapping[tuple[int, Index], Any] = MappingProxyType({}),
) -> np.ndarray:
    """Live bytes of temporaries, int64[instructions of a scheduled module's entry].

    Arguments:
        places: addresses, by instruction and shape index, where XLA publishes them:
            results at the address of an operand take no memory of their own.
    """
    return _live_bytes(Flow(module, module.entry, places), module)


def _live_bytes(flow: Flow, module: HloModule) -> np.ndarray:
    first, last, size = _spans(flow, module)
    return bytes_over_time(first, last, size, len(flow.sequence))


def copied_arguments_bytes(module: HloModule) -> int:
    """Bytes of the copies of arguments that are alive at the peak of the live bytes."""
    flow = Flow(module, module.entry)
    peak = int(_live_bytes(flow, module).argmax())
    when = {number: at for at, number in enumerate(flow.sequence)}
    kinds = kinds_of_storage(module, flow)
    copies = (
        value
        for value in flow.values
        if id(value.root()) not in kinds and _is_copied_argument(module, value.instruction)
    )
    return sum(
        value.bytes
        for value in copies
        if when[value.instruction] <= peak <= flow.last_read[id(value)]
    )


def _is_copied_argument(module: HloModule, number: int) -> bool:
    instruction = module.instructions[number]
    if instruction.opcode != "copy":
        return False
    source = module.instructions[instruction.operands[0]]
    while source.opcode == "bitcast":
        source = module.instructions[source.operands[0]]
    return source.opcode == "parameter"


def heap_bytes(module: HloModule, *, alignment: int = HEAP_ALIGNMENT) -> int:
    """Bytes of heap that the temporaries of a scheduled module need, as XLA packs them."""
    spans = _spans(Flow(module, module.entry), module)
    return _ext.xla_heap_bytes(*spans, alignment=alignment)


def _spans(flow: Flow, module: HloModule) -> np.ndarray:
    """int64[3, n]: first and last instruction and bytes of the storages of temporaries."""
    kinds = kinds_of_storage(module, flow)
    when = {number: at for at, number in enumerate(flow.sequence)}
    spans: dict[int, list[int]] = {}  # By storage.
    for value in flow.values:
        storage = value.root()
        if id(storage) in kinds or not storage.bytes:
            continue
        first, last = when[value.instruction], flow.last_read[id(value)]
        span = spans.setdefault(id(storage), [first, last, storage.bytes])
        span[:2] = min(span[0], first), max(span[1], last)
    return np.array([*spans.values()], np.int64).reshape(-1, 3).T
