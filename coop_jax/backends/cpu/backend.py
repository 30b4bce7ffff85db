"""XLA:CPU as a backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.cpu import fence_call as fence_call  # Registers its lowering.
from coop_jax.backends.cpu import fresh_pages
from coop_jax.backends.cpu.early_stacks import has_early_stacks
from coop_jax.backends.cpu.order_for_memory import ORDER_FOR_MEMORY
from coop_jax.backends.cpu.pool_gradient import with_pool_gradients
from coop_jax.backends.cpu.quirks import (
    COMBINED_SUMS,
    CONCURRENT_ORDER,
    COPIED_INPUTS,
    COPIED_UPDATES,
    CPU_QUIRKS,
    EARLY_COPIES,
    EARLY_STACKS,
    FRESH_PAGES,
    KEPT_CONSTANTS,
    NO_GUARDS,
    POOL_GRADIENT,
    RANDOM_BITS,
    REMOVED_BARRIERS,
    SHARED_CONSTANTS,
)
from coop_jax.backends.cpu.random_bits import kept_in_halves
from coop_jax.backends.cpu.shared_constants import shared_constants
from coop_jax.emit.hints import FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.stored_values import StoredValues
from coop_jax.plan.planner import PlanOptions
from coop_jax.targets import Target
from coop_jax.trace.in_shard_maps import has_shards
from coop_jax.trace.program import Program
from coop_jax.xla.buffer_assignment import published_module
from coop_jax.xla.liveness import copied_arguments_bytes

# XLA:CPU removes the barriers of `jax.checkpoint` and merges what it recomputes back into
# the forward pass, unless this pass is off.
_WITH_BARRIERS = MappingProxyType({"xla_disable_hlo_passes": "cse_barrier_expander"})
# XLA:CPU makes one kernel of a loop with little work, and aborts on a barrier inside of it.
_WITH_BARRIERS_IN_LOOPS = MappingProxyType(
    {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}
)


# The module has its buffers before LLVM starts, which takes much of a compilation.
_WITHOUT_OPTIMIZED_CODE = MappingProxyType({"xla_backend_optimization_level": 0})


class CpuBackend(Backend):
    quirks = CPU_QUIRKS
    reading_options = _WITHOUT_OPTIMIZED_CODE
    has_arena = True

    def __init__(self, *, without: Collection[str] = ()) -> None:
        super().__init__(without=without)
        # The fence is an aliased call, which copies what the caller still owns.
        self.inputs_pass_fences_free = not self.has(COPIED_INPUTS)
        self.has_guards = not self.has(NO_GUARDS)
        self.gathers_early = self.has(EARLY_COPIES)
        self.combines_sums = self.has(COMBINED_SUMS)
        if self.has(FRESH_PAGES):
            self.free_temporary_bytes = fresh_pages.most_for_nothing()
        if self.has(REMOVED_BARRIERS):
            self.checkpoint_options = _WITH_BARRIERS
            self.checkpoint_in_loops_options = _WITH_BARRIERS_IN_LOOPS

    def prepare(self, program: Program) -> Program:
        return with_pool_gradients(program) if self.has(POOL_GRADIENT) else program

    @property
    def options_for_memory(self) -> Mapping[str, Any]:
        if self.has(CONCURRENT_ORDER):
            return ORDER_FOR_MEMORY
        return super().options_for_memory

    def options_of_plans(self, program: Program) -> Mapping[str, Any]:
        if self.has(EARLY_STACKS) and has_early_stacks(program):
            return ORDER_FOR_MEMORY
        return super().options_of_plans(program)

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        bits, constants = frozenset[int](), frozenset[int]()
        if self.has(RANDOM_BITS):
            bits = kept_in_halves(program)
        # What passes a fence in a program with shards has to be known there.
        if self.has(SHARED_CONSTANTS) and not has_shards(program):
            constants = shared_constants(program)
        return FenceHints(fenced_alone=bits, shared_constants=constants)

    def seconds_for_temporaries(self, num_bytes: int) -> float:
        return fresh_pages.seconds_for(num_bytes) if self.has(FRESH_PAGES) else 0.0

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
        halved = kept_in_halves(program) if self.has(RANDOM_BITS) else ()
        bits = [v for index in halved for v in program.eqns[index].outvars]
        return self._copied_bytes(compiled) + super().expected_bytes_as_written(
            program, stored.with_twice(bits), target, options, compiled
        )

    def _copied_bytes(self, compiled: Any) -> int:
        if compiled is None or not self.has(COPIED_UPDATES):
            return 0
        module = published_module(compiled)
        return 0 if module is None else copied_arguments_bytes(module)

    def _attribution(
        self, program: Program, compiled: Any, **habits: bool
    ) -> Attribution | None:
        habits["keeps_constants"] = self.has(KEPT_CONSTANTS)
        return super()._attribution(program, compiled, **habits)
