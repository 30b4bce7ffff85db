"""XLA:TPU as a backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.tpu import compile_to_buffers
from coop_jax.backends.tpu import fence_layouts as fence_layouts  # Registers its lowering.
from coop_jax.backends.tpu.async_copies import unlisted_of_plans
from coop_jax.backends.tpu.bf16_storage import is_rounded, read_rounded
from coop_jax.backends.tpu.compiler_options import COMPILER_OPTIONS
from coop_jax.backends.tpu.heap import bytes_alive, expected_heap
from coop_jax.backends.tpu.layouts import layouts_of
from coop_jax.emit.hints import FenceHints
from coop_jax.graph.attribution import Attribution
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import PlanOptions, unconstrained
from coop_jax.targets import Target
from coop_jax.trace.program import Program


class TpuBackend(Backend):
    compiler_options = COMPILER_OPTIONS
    has_second_memory = True

    def compile(
        self,
        lowered: Any,
        device: Any,
        jit_options: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> Any:
        """An absent TPU is compiled for as far as the buffers."""
        if not compile_to_buffers.is_enough_for(device):
            return super().compile(lowered, device, jit_options, options)
        return compile_to_buffers.compile_until_buffers(
            lowered, device, {**jit_options, **options}
        )

    def fence_hints(self, program: Program, stored: StoredValues | None) -> FenceHints:
        if stored is None:
            return FenceHints()
        return FenceHints(layouts=stored.layouts, narrowed=stored.narrowed)

    def expected_bytes(
        self, graph: StepGraph, schedule: AnySchedule, options: PlanOptions
    ) -> int:
        return expected_heap(graph, schedule).bytes

    def expected_bytes_as_written(
        self,
        program: Program,
        stored: StoredValues,
        target: Target,
        options: PlanOptions,
        compiled: Any,
    ) -> int:
        """XLA orders the step so that little is alive: the better of both orders."""
        late = stored.without_early()
        graphs = [build_graph(program, late, target, early=e) for e in (False, True)]
        alive = min(bytes_alive(g, unconstrained(g, options)) for g in graphs)
        return sum(stored.early_bytes.values()) + alive

    def _read(self, attribution: Attribution) -> StoredValues:
        module, program = attribution.module, attribution.program
        halves = [
            value
            for value, sizes in attribution.value_sizes.items()
            if all(is_rounded(value, one) for one in sizes)
        ]
        fusions = attribution.fused_equations() if halves else []
        return dataclasses.replace(
            attribution.stored_values("fusions"),
            more_unlisted_of_plans=unlisted_of_plans(module) - module.unlisted_bytes,
            layouts=layouts_of(
                program, module, attribution.kept, attribution.num_partitions
            ),
            narrowed=read_rounded(program, halves, attribution.consumers, fusions),
        )
