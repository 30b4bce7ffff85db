"""XLA:TPU as a backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.tpu import compile_to_buffers
from coop_jax.backends.tpu import fence_layouts as fence_layouts  # Registers its lowering.
from coop_jax.backends.tpu.async_copies import unlisted_of_plans
from coop_jax.backends.tpu.bf16_storage import is_rounded, read_rounded
from coop_jax.backends.tpu.compiler_options import COMPILER_OPTIONS, NO_REMATERIALIZATION
from coop_jax.backends.tpu.heap import bytes_alive, expected_heap
from coop_jax.backends.tpu.layouts import layouts_of
from coop_jax.backends.tpu.quirks import (
    BF16_STORAGE,
    BUFFERS_FIRST,
    COPY_TABLES,
    FENCE_LAYOUTS,
    FUSIONS_IN_PLACE,
    GOOD_PACKING,
    ORDER_AS_WRITTEN,
    OTHER_FORMS,
    POOL_SWEEP,
    TPU_QUIRKS,
    VMEM,
)
from coop_jax.emit.hints import NO_HINTS, FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import Narrowed, StoredValues
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import PlanOptions, unconstrained
from coop_jax.targets import Target
from coop_jax.trace.program import Program
from coop_jax.xla.shapes import Order


class TpuBackend(Backend):
    quirks = TPU_QUIRKS

    def __init__(self, *, without: Collection[str] = ()) -> None:
        super().__init__(without=without)
        if self.has(GOOD_PACKING):
            self.compiler_options = COMPILER_OPTIONS
        self.has_second_memory = self.has(VMEM)
        self.sweeps_pools = self.has(POOL_SWEEP)
        self.runs_layers_again = True

    def without_rematerialization(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, **NO_REMATERIALIZATION}

    def compile(
        self,
        lowered: Any,
        device: Any,
        jit_options: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Any:
        """An absent TPU is compiled for as far as the buffers."""
        is_enough = compile_to_buffers.is_enough_for(device)
        if not (is_enough and self.has(BUFFERS_FIRST)):
            return super().compile(lowered, device, jit_options, options)
        return compile_to_buffers.compile_until_buffers(
            lowered, device, {**jit_options, **options}
        )

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        if stored is None:
            return NO_HINTS
        return FenceHints(layouts=stored.layouts, narrowed=stored.narrowed)

    def expected_bytes(
        self, graph: StepGraph, schedule: AnySchedule, options: PlanOptions
    ) -> int:
        return expected_heap(graph, schedule, self.without).bytes

    def expected_bytes_as_written(
        self,
        program: Program,
        stored: StoredValues,
        target: Target,
        options: PlanOptions,
        compiled: Any,
    ) -> int:
        """XLA orders the step so that little is alive: the better of both orders."""
        if not self.has(ORDER_AS_WRITTEN):
            return super().expected_bytes_as_written(
                program, stored, target, options, compiled
            )
        late = stored.without_early()
        graphs = [build_graph(program, late, target, early=e) for e in (False, True)]
        alive = min(bytes_alive(g, unconstrained(g, options), self.without) for g in graphs)
        return sum(stored.early_bytes.values()) + alive

    def _attribution(
        self, program: Program, compiled: Any, **habits: bool
    ) -> Attribution | None:
        habits["has_other_forms"] = self.has(OTHER_FORMS)
        return super()._attribution(program, compiled, **habits)

    def _read(self, attribution: Attribution) -> StoredValues:
        in_place = "fusions" if self.has(FUSIONS_IN_PLACE) else "elementwise"
        stored = attribution.stored_values(in_place)
        if self.has(COPY_TABLES):
            module = attribution.module
            more_bytes = unlisted_of_plans(module) - module.unlisted_bytes
            stored = dataclasses.replace(stored, more_unlisted_of_plans=more_bytes)
        if self.has(FENCE_LAYOUTS):
            stored = dataclasses.replace(stored, layouts=_layouts(attribution))
        if self.has(BF16_STORAGE):
            stored = dataclasses.replace(stored, narrowed=_narrowed(attribution))
        return stored


def _layouts(attribution: Attribution) -> dict[Any, Order]:
    """The layouts that fences keep."""
    return layouts_of(
        attribution.program,
        attribution.module,
        attribution.kept,
        attribution.num_partitions,
    )


def _narrowed(attribution: Attribution) -> Narrowed:
    """The values that pass fences in half precision."""
    halves = [
        value
        for value, sizes in attribution.value_sizes.items()
        if all(is_rounded(value, one) for one in sizes)
    ]
    fusions = attribution.fused_equations() if halves else []
    return read_rounded(attribution.program, halves, attribution.consumers, fusions)
