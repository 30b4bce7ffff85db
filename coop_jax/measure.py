"""Measure: what XLA says a compiled step needs on one device."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class MemoryFigures:
    """XLA's own figures for a compiled step, in bytes, for one device.

    Attributes:
        argument_bytes, output_bytes: buffers of arguments and results.
        alias_bytes: results that take over the memory of donated arguments.
        temp_bytes: everything in between.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """What no plan can change: arguments and results, counted once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes

    @property
    def total_bytes(self) -> int:
        """What the budget is compared with.

        Added up from the parts: on CPU, XLA's `peak_memory_in_bytes` leaves the
        temporaries out (JAX 0.10 and 0.12).
        """
        return self.fixed_bytes + self.temp_bytes


def memory_figures(compiled: Any) -> MemoryFigures:
    """Read the figures off a `jax.stages.Compiled`."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise NotImplementedError(
            "`coop_jax` needs XLA's memory figures, and this platform's "
            "`Compiled.memory_analysis()` returns None. Plan for a platform that "
            "reports them (CPU, CUDA, TPU)."
        )
    return MemoryFigures(
        argument_bytes=analysis.argument_size_in_bytes,
        output_bytes=analysis.output_size_in_bytes,
        alias_bytes=analysis.alias_size_in_bytes,
        temp_bytes=analysis.temp_size_in_bytes,
    )
