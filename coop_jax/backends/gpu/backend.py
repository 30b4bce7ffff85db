"""XLA:GPU as a backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.gpu.quirks import GPU_QUIRKS, NOTHING_IN_PLACE, SHARED_ZEROS
from coop_jax.backends.gpu.shared_zeros import shared_zeros
from coop_jax.emit.hints import NO_HINTS, FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.program import Program

# The pass begins where XLA's estimate is above 76 % of the memory, less where arguments and
# results are most of it: of budgets near the device's memory it would recompute plans.
_DISABLED_PASSES, _REMATERIALIZATION = "xla_disable_hlo_passes", "rematerialization"


class GpuBackend(Backend):
    """Of NVIDIA GPUs; `has_arena=False` for others."""

    quirks = GPU_QUIRKS

    def __init__(self, *, has_arena: bool = True, without: Collection[str] = ()) -> None:
        super().__init__(without=without)
        self.has_arena = has_arena
        self.fuses_into_readers = True
        self.runs_layers_again = True

    def without_rematerialization(self, options: Mapping[str, Any]) -> dict[str, Any]:
        disabled = options.get(_DISABLED_PASSES)
        passes = f"{disabled},{_REMATERIALIZATION}" if disabled else _REMATERIALIZATION
        return {**options, _DISABLED_PASSES: passes}

    def switched(self, *, without: Collection[str]) -> Backend:
        return GpuBackend(has_arena=self.has_arena, without=without)

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        if not self.has(SHARED_ZEROS):
            return NO_HINTS
        return FenceHints(shared_zeros=shared_zeros(program))

    def _read(self, attribution: Attribution) -> StoredValues:
        if not self.has(NOTHING_IN_PLACE):
            return super()._read(attribution)
        return attribution.stored_values("scatters")
