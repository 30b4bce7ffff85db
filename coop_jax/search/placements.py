"""Placements: a schedule as a program, and the bytes XLA is expected to need for it.

The placement decides the boundaries between segments: fences, where XLA's buffer assignment
places all tensors, or exchanges with an arena.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from coop_jax.arena.layout import ArenaPlan, plan_arena
from coop_jax.arena.writer import rewrite_with_arena
from coop_jax.backends.backend import Backend
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.combined_sums import fences_between_sums
from coop_jax.emit.hints import FenceHints
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import Segment, cut
from coop_jax.graph.step_graph import StepGraph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import PlanOptions
from coop_jax.targets import Target, target_of
from coop_jax.trace.in_shard_maps import has_shards
from coop_jax.trace.program import Program

PLACEMENTS = ("xla", "arena")


@dataclasses.dataclass(frozen=True, eq=False)
class Realization:
    """A schedule as a program.

    Attributes:
        segments: the segments that the schedule was cut into.
        program: the rewritten program.
        arena: the arena's plan; None where XLA places all tensors.
    """

    segments: list[Segment]
    program: Program
    arena: ArenaPlan | None = None


def with_options(realized: Realization, options: Mapping[str, Any]) -> Realization:
    """A realization whose program is compiled with options beside the step's own."""
    if not options:
        return realized
    program = dataclasses.replace(realized.program, compiler_options=options)
    return dataclasses.replace(realized, program=program)


def unless_unchanged(realized: Realization, graph: StepGraph) -> Realization:
    """A realization; of a schedule that changes nothing the program as it is, without the
    order that plans give to updates in place.

    For values made again inside of readers or layers, where that is all that is changed:
    that order would only tear fusions apart.
    """
    if changes_nothing(realized.segments):
        return dataclasses.replace(realized, program=graph.program)
    return realized


def changes_nothing(segments: Sequence[Segment]) -> bool:
    """Whether a schedule has no fence and recomputes nothing, by its segments."""
    if len(segments) > 1:
        return False
    return not any(one.is_recompute for part in segments for one in part.executions)


class XlaPlacement:
    """The placement where XLA's buffer assignment places the tensors.

    Arguments:
        backend: the backend that compiles the step.
        hints: its requirements on the fences (`Backend.fence_hints`).
    """

    has_arena = False

    def __init__(self, backend: Backend, hints: FenceHints) -> None:
        self.backend = backend
        self._hints = hints

    def expected_bytes(
        self, graph: StepGraph, schedule: AnySchedule, options: PlanOptions
    ) -> int:
        """Bytes of temporaries that the compiled step is expected to need."""
        return self.backend.expected_bytes(graph, schedule, options)

    def segments(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        *,
        is_guarded: bool = True,
        ordered_before: Collection[int] = (),
    ) -> list[Segment]:
        """The segments of a schedule's program, without that: most plans are asked for
        these alone.

        Arguments:
            graph, schedule, is_guarded: as of `segments.cut`.
            ordered_before: numbers of the executions with a fence before them that keeps
                XLA to the plan's order (`search.order_feedback`).
        """
        between_sums: Collection[int] = ()
        if self.backend.combines_sums:
            between_sums = fences_between_sums(graph, schedule)
        return cut(
            graph,
            schedule,
            fence_free_inputs=self.backend.inputs_pass_fences_free,
            is_guarded=is_guarded and self.backend.has_guards,
            also_before={*between_sums, *ordered_before},
        )

    def realize(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        *,
        is_guarded: bool = True,
        ordered_before: Collection[int] = (),
    ) -> Realization:
        """The program of a schedule; arguments as of `segments`."""
        segments = self.segments(
            graph, schedule, is_guarded=is_guarded, ordered_before=ordered_before
        )
        return Realization(segments, rewrite(graph, segments, self._hints))


class ArenaPlacement(XlaPlacement):
    """The placement where values with long idle intervals lie in an arena, at the plan's
    offsets.

    Arguments:
        backend, hints: as of `XlaPlacement`.
        platform: JAX's name of the platform, for the error.
        target: the device, whose bandwidth gives the time of an exchange.
        exchange_log: number of the log of checked exchanges; None: they are not checked.

    Raises:
        ValueError: if the backend has no arena.
    """

    has_arena = True

    def __init__(
        self,
        backend: Backend,
        hints: FenceHints,
        platform: str,
        target: Target,
        exchange_log: int | None,
    ) -> None:
        if not backend.has_arena:
            raise ValueError(
                '`remat_train_step(placement="arena")` works on CPU and NVIDIA GPUs. Got '
                f'a step for {platform!r}: use `placement="xla"` there.'
            )
        super().__init__(backend, hints)
        self._target = target
        self._exchange_log = exchange_log
        # The last schedule with its segments and arena: a schedule's bytes are asked for
        # first, and then its program.
        self._last: tuple[Any, list[Segment], ArenaPlan] | None = None

    def expected_bytes(
        self, graph: StepGraph, schedule: AnySchedule, options: PlanOptions
    ) -> int:
        _, arena = self._planned(graph, schedule)
        return arena.arena_bytes + arena.outside_bytes

    def segments(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        *,
        is_guarded: bool = True,
        ordered_before: Collection[int] = (),
    ) -> list[Segment]:
        return self._planned(graph, schedule)[0]

    def realize(
        self,
        graph: StepGraph,
        schedule: AnySchedule,
        *,
        is_guarded: bool = True,
        ordered_before: Collection[int] = (),
    ) -> Realization:
        segments, arena = self._planned(graph, schedule)
        program = rewrite_with_arena(
            graph, segments, self._hints, arena, self._exchange_log
        )
        return Realization(segments, program, arena)

    def _planned(
        self, graph: StepGraph, schedule: AnySchedule
    ) -> tuple[list[Segment], ArenaPlan]:
        """Segments and arena of a schedule; those of the last one are kept."""
        if self._last is None or self._last[0] is not schedule:
            segments, arena = plan_arena(
                graph,
                schedule,
                self._target,
                fence_free_inputs=self.backend.inputs_pass_fences_free,
                is_guarded=self.backend.has_guards,
            )
            self._last = schedule, segments, arena
        return self._last[1], self._last[2]


@dataclasses.dataclass(frozen=True)
class Placing:
    """The choice of a placement.

    Attributes:
        name: one of `PLACEMENTS`.
        exchange_log: for an arena, the number of the log of checked exchanges; None: they
            are not checked.
    """

    name: str = "xla"
    exchange_log: int | None = None

    def placement(
        self, traced: TracedStep, stored: StoredValues | None = None
    ) -> XlaPlacement:
        """The placement for a step.

        Arguments:
            traced: the step.
            stored: its stored values; None where nothing was compiled.

        Raises:
            ValueError: if an arena is asked for and the step is for several devices, has a
                `shard_map` in it, or its backend has no arena.
        """
        return self.of_program(
            *(traced.program, traced.backend, traced.device(), traced.num_devices()),
            stored,
        )

    def of_program(
        self,
        program: Program,
        backend: Backend,
        device: Any,
        num_devices: int,
        stored: StoredValues | None,
    ) -> XlaPlacement:
        """The placement for a program, with the parts of a traced step; else as above."""
        hints = backend.fence_hints(program, stored)
        if self.name != "arena":
            return XlaPlacement(backend, hints)
        if num_devices > 1:
            raise ValueError(
                '`remat_train_step(placement="arena")` is for steps on one device. Got '
                f'arguments over {num_devices}: use `placement="xla"`, which '
                "plans what each device keeps."
            )
        if has_shards(program):
            raise ValueError(
                '`remat_train_step(placement="arena")` is for steps without a '
                '`shard_map`. Got a step with one in it: use `placement="xla"`, which '
                "plans its equations as those around it."
            )
        return ArenaPlacement(
            backend, hints, device.platform, target_of(device), self.exchange_log
        )


XLA_PLACES = Placing()
