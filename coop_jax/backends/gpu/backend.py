"""XLA:GPU as a backend."""

from __future__ import annotations

from coop_jax.backends.backend import Backend
from coop_jax.backends.gpu.shared_zeros import shared_zeros
from coop_jax.emit.hints import FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.program import Program


class GpuBackend(Backend):
    """Of NVIDIA GPUs; `has_arena=False` for others."""

    def __init__(self, *, has_arena: bool = True) -> None:
        self.has_arena = has_arena

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        return FenceHints(shared_zeros=shared_zeros(program))

    def _read(self, attribution: Attribution) -> StoredValues:
        return attribution.stored_values("scatters")
