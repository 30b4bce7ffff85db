"""Compiler options: those of every version of a step on a TPU.

XLA:TPU packs its main memory like an allocator at run time, each buffer into the smallest
gap when it begins. That leaves gaps, in plans more than in steps as written. Only where the
result is more than the device has does XLA pack again, by size and by length of life, which
leaves hardly any. A budget is there to be kept on any device: so XLA has to pack well
at once, for the step as written, for policies that it is compared with, and for plans. It
changes nothing but addresses.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

COMPILER_OPTIONS: MappingProxyType[str, Any] = MappingProxyType(
    {"xla_tpu_buffer_assignment_enable_fast_merge_fallback": False}
)
"""Options of XLA:TPU; those that the user gave take precedence."""

NO_REMATERIALIZATION: MappingProxyType[str, Any] = MappingProxyType(
    {"xla_tpu_rematerialization_min_size_in_bytes": 1 << 40}
)
"""By which XLA:TPU rematerializes no value by itself: none is as large. Disabling the pass
by its name changes nothing."""
