"""XLA:CPU as a backend."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.cpu import fence_call as fence_call  # Registers its lowering.
from coop_jax.backends.cpu.pool_gradient import with_pool_gradients
from coop_jax.backends.cpu.random_bits import kept_in_halves
from coop_jax.emit.hints import FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.stored_values import StoredValues
from coop_jax.plan.planner import PlanOptions
from coop_jax.targets import Target
from coop_jax.trace.program import Program
from coop_jax.xla.buffer_assignment import published_module
from coop_jax.xla.liveness import copied_arguments_bytes


class CpuBackend(Backend):
    # XLA:CPU removes the barriers of `jax.checkpoint` and merges what it recomputes back
    # into the forward pass, unless this pass is off.
    checkpoint_options = MappingProxyType(
        {"xla_disable_hlo_passes": "cse_barrier_expander"}
    )
    # The fence is an aliased call, which copies what the caller still owns.
    inputs_pass_fences_free = False
    has_arena = True

    def prepare(self, program: Program) -> Program:
        return with_pool_gradients(program)

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        return FenceHints(fenced_alone=kept_in_halves(program))

    def expected_bytes_as_written(
        self,
        program: Program,
        stored: StoredValues,
        target: Target,
        options: PlanOptions,
        compiled: Any,
    ) -> int:
        """Without fences random bits stay in two halves, and weights are copied before
        they are updated."""
        halved = kept_in_halves(program)
        bits = [v for index in halved for v in program.eqns[index].outvars]
        module = None if compiled is None else published_module(compiled)
        copied_bytes = 0 if module is None else copied_arguments_bytes(module)
        return copied_bytes + super().expected_bytes_as_written(
            program, stored.with_twice(bits), target, options, compiled
        )

    def _attribution(
        self, program: Program, compiled: Any, *, constants_stand: bool = True
    ) -> Attribution | None:
        return super()._attribution(program, compiled, constants_stand=constants_stand)
