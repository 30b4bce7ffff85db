"""XLA live: what a compiled step keeps alive while it runs, and how XLA packs that."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.hlo_module import HloModule
from coop_jax.targets import TPU_ALIGNMENT
from coop_jax.xla_schedule import Flow, Index, kinds_of_storage


def live_bytes(
    module: HloModule,
    places: Mapping[tuple[int, Index], Any] = MappingProxyType({}),
) -> np.ndarray:
    """Bytes of temporaries alive at every instruction of a scheduled module's entry.

    Arguments:
        places: addresses, by instruction and shape index, where XLA publishes them:
            results that lie where an operand lay are no memory of their own.
    """
    first, last, size = _spans(module, places)
    count = len(module.sequences[module.entry])
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, np.minimum(last, count - 1) + 1, -size)
    return np.cumsum(change[:-1])


def heap_bytes(module: HloModule, *, on_tpu: bool = False) -> int:
    """What the temporaries of a scheduled module need, as XLA packs them.

    XLA:TPU packs its main memory otherwise than XLA:CPU and XLA:GPU: as buffers begin,
    each in the smallest gap.
    """
    spans = _spans(module)
    if on_tpu:
        return _ext.xla_heap_bytes(*spans, alignment=TPU_ALIGNMENT, by_time=True)
    return _ext.xla_heap_bytes(*spans)


def _spans(
    module: HloModule,
    places: Mapping[tuple[int, Index], Any] = MappingProxyType({}),
) -> np.ndarray:
    """First and last instruction, and bytes, of everything that temporaries lie in."""
    flow = Flow(module, module.entry, places)
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
