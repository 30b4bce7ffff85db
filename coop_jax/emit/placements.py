"""Placements: a schedule as a program, and the bytes XLA is expected to need for it.

The placement decides what stands between two segments (DESIGN, section 5): fences, where
XLA lays all tensors out itself, or exchanges with an arena.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coop_jax.arena.layout import ArenaPlan, plan_arena
from coop_jax.backends.cpu.random_bits import kept_in_halves
from coop_jax.backends.gpu.shared_zeros import shared_zeros
from coop_jax.backends.tpu.bf16_storage import Rounded
from coop_jax.backends.tpu.heap import expected_heap
from coop_jax.backends.tpu.layouts import Order
from coop_jax.emit.fence import input_copies_are_free
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import Segment, cut
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan import planner
from coop_jax.plan.planner import PlanOptions, Schedule
from coop_jax.targets import Target
from coop_jax.trace.program import Program

PLACEMENTS = ("xla", "arena")
# Of JAX's platforms, those that have the arena's custom calls.
_WITH_ARENA = frozenset(("cpu", "gpu", "cuda"))


@dataclasses.dataclass(frozen=True, eq=False)
class Realization:
    """A schedule as a program; `arena` is None where XLA places everything."""

    segments: list[Segment]
    program: Program
    arena: ArenaPlan | None = None


class XlaPlacement:
    """XLA's buffer assignment lays the tensors out.

    Arguments:
        program: the step.
        platform: JAX's name of the platform that the step is compiled for.
        layouts: that fences keep, by variable (`backends.tpu.layouts`).
        rounded: values that are kept in half precision (`backends.tpu.bf16_storage`).

    Attributes:
        has_near_memory: whether XLA places buffers as XLA:TPU does (`backends.tpu.heap`).
    """

    def __init__(
        self,
        program: Program,
        platform: str,
        layouts: Mapping[Any, Order] = MappingProxyType({}),
        rounded: Rounded = MappingProxyType({}),
    ) -> None:
        self._fence_free_inputs = input_copies_are_free(platform)
        self.has_near_memory = platform == "tpu"
        self._layouts = layouts
        self._rounded = rounded
        self._shared_zeros = shared_zeros(program, platform)
        self._halved_bits = kept_in_halves(program, platform)

    def expected_bytes(
        self, graph: StepGraph, schedule: Schedule, options: PlanOptions
    ) -> int:
        """Temporaries that the compiled step is expected to need."""
        if self.has_near_memory:
            return expected_heap(graph, schedule).bytes
        return planner.expected_bytes(graph, schedule, options)

    def realize(
        self, graph: StepGraph, schedule: Schedule, *, is_guarded: bool = True
    ) -> Realization:
        """The program of a schedule; see `segments.cut` for `is_guarded`."""
        segments = cut(
            graph,
            schedule,
            fence_free_inputs=self._fence_free_inputs,
            is_guarded=is_guarded,
        )
        program = rewrite(
            graph,
            segments,
            self._shared_zeros,
            self._halved_bits,
            self._layouts,
            self._rounded,
        )
        return Realization(segments, program)


class ArenaPlacement(XlaPlacement):
    """Values that wait long lie in an arena, at the plan's offsets.

    Arguments:
        target: whose bandwidth says what an exchange takes.
        books: where checked exchanges keep their books; None: they are not checked.
    """

    def __init__(
        self, program: Program, platform: str, target: Target, books: int | None
    ) -> None:
        if platform not in _WITH_ARENA:
            raise ValueError(
                '`remat_train_step(placement="arena")` works on CPU and NVIDIA GPUs. Got '
                f'a step for {platform!r}: use `placement="xla"` there.'
            )
        super().__init__(program, platform)
        self._target = target
        self._books = books
        # Of the plan asked for last: it is asked for its bytes, then for its program.
        self._last: tuple[Any, list[Segment], ArenaPlan] | None = None

    def expected_bytes(
        self, graph: StepGraph, schedule: Schedule, options: PlanOptions
    ) -> int:
        _, arena = self._planned(graph, schedule)
        return arena.arena_bytes + arena.outside_bytes

    def realize(
        self, graph: StepGraph, schedule: Schedule, *, is_guarded: bool = True
    ) -> Realization:
        segments, arena = self._planned(graph, schedule)
        program = rewrite(
            graph,
            segments,
            self._shared_zeros,
            self._halved_bits,
            arena=arena,
            books=self._books,
        )
        return Realization(segments, program, arena)

    def _planned(
        self, graph: StepGraph, schedule: Schedule
    ) -> tuple[list[Segment], ArenaPlan]:
        if self._last is None or self._last[0] is not schedule:
            segments, arena = plan_arena(
                graph, schedule, self._target, fence_free_inputs=self._fence_free_inputs
            )
            self._last = schedule, segments, arena
        return self._last[1], self._last[2]
