"""Hints: requirements of a backend on the fences of a step, beyond the schedule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from coop_jax.graph.stored_values import Narrowed
from coop_jax.xla.shapes import Order


@dataclasses.dataclass(frozen=True, eq=False)
class FenceHints:
    """The differences between backends at a fence that are known before the schedule.

    Attributes:
        shared_zeros: equations whose scalar zeros pass the fence of their segment
            (`backends.gpu.shared_zeros`), by index.
        shared_constants: equations whose scalar constants do
            (`backends.cpu.shared_constants`), by index.
        fenced_alone: equations whose results pass a fence of their own as soon as they
            are computed (`backends.cpu.random_bits`), by index.
        layouts: layouts that fences have to keep (`backends.tpu.layouts`), by variable.
        narrowed: values that may be bfloat16-narrowed from one segment to the next
            (`backends.tpu.bf16_storage`).
    """

    shared_zeros: frozenset[int] = frozenset()
    shared_constants: frozenset[int] = frozenset()
    fenced_alone: frozenset[int] = frozenset()
    layouts: Mapping[Any, Order] = dataclasses.field(default_factory=dict)
    narrowed: Narrowed = dataclasses.field(default_factory=dict)


NO_HINTS = FenceHints()
