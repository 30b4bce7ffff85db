"""Report: the `Plan` that a user reads: the decisions for a step, and their costs."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from coop_jax.arena.layout import ArenaPlan
from coop_jax.base import _compat
from coop_jax.base.budget import format_bytes
from coop_jax.base.errors import PlanFileError
from coop_jax.emit.fence import fence_p
from coop_jax.emit.segments import Segment, executions_in
from coop_jax.graph.step_graph import StepGraph
from coop_jax.loops.loop_plan import (
    LoopPlan,
    Recomputation,
    body_plan,
    loop_lines,
    loop_plan,
    recomputation_lines,
    recomputations_of,
)
from coop_jax.loops.parts import PlannedPair
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.unread_executions import overhead_of_read, read_executions, run_again
from coop_jax.saved.recipe import FIGURES, Recipe, SavedRecipe
from coop_jax.search.candidates import Measured
from coop_jax.search.tight_bodies import TightBody
from coop_jax.targets import Target, known_target, memory_bytes
from coop_jax.trace.costs import flops, is_fusible, seconds_again
from coop_jax.trace.program import Program
from coop_jax.trace.replacements import original


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """How a step fits its budget; prints as a short report.

    Attributes:
        target: the device that the step was compiled for, by the name that `target=`
            takes where it has one.
        target_bytes: that device's memory, None if it is not known (CPU).
        budget_bytes: the bytes that were allowed.
        unmodified_bytes: XLA's figure for the step as written.
        predicted_bytes: the planner's expectation for this plan before it was compiled.
        measured_bytes: XLA's figure for the planned step.
        compute_overhead: modelled time relative to no recomputation, at least 1: what the
            planner expects before XLA fuses the plan.
        executable_overhead: modelled time of the executable's instructions, and of its
            memory where that takes time, relative to that of the step as written. It is
            below 1 where XLA stores less for the plan. None where the step fits as written
            or one of them is not known: of plans that are not compiled or come from a file,
            and of devices whose compiler does not publish instructions.
        recomputed_flops: floating point operations of all recomputations in one step.
        total_flops: floating point operations of the step as written.
        num_compilations: the number of compilations by XLA until this plan was accepted.
        num_fences: boundaries in the planned step, those in the body of a loop once.
        recomputations: recomputed work by source line, most operations first.
        schedule: the planner's schedule, None if the step around loops is left as it is.
        arena: the arena's layout; None with `placement="xla"`.
        loops: the loops that are planned.
        num_devices: the number of devices that the step is divided over. All bytes are of
            one of them; operations are of all together.
        num_inside_readers: equations made again inside of their readers, where XLA stores
            nothing for them; `recomputations` has them, too.
        worthwhile_bytes: the bytes that the plan was made for where that is less than the
            budget, as more would take more time than they save; else None.
        recipe: what `save` writes; None of a plan that no step was compiled for.
    """

    target: str
    target_bytes: int | None
    budget_bytes: int
    unmodified_bytes: int
    predicted_bytes: int
    measured_bytes: int | None
    compute_overhead: float
    recomputed_flops: int
    total_flops: int
    num_compilations: int
    num_fences: int
    recomputations: tuple[Recomputation, ...]
    schedule: AnySchedule | None
    arena: ArenaPlan | None = None
    loops: tuple[LoopPlan, ...] = ()
    num_devices: int = 1
    num_inside_readers: int = 0
    worthwhile_bytes: int | None = None
    executable_overhead: float | None = None
    recipe: Recipe | SavedRecipe | None = dataclasses.field(default=None, repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file, which `remat_train_step(plan=path)` starts from.

        The file is JSON: the step, its equations one per line, and what is decided of it,
        as numbers of these equations. With it a step is compiled once, and nothing is
        planned. It holds no arrays and no code. It may be made on another machine, also for
        a target that is not there: `coop_jax.fit(step, ..., target="h200").save(path)`.

        Arguments:
            path: of the file, which is written anew.

        Raises:
            PlanFileError: the plan is of a kind that cannot be saved.
        """
        pathlib.Path(path).write_text(self.file_text(), encoding="utf-8")

    def file_text(self) -> str:
        """The text that `save` writes.

        Raises:
            PlanFileError: as of `save`.
        """
        if self.recipe is None:
            raise PlanFileError(
                "`Plan.save(...)` saves plans of compiled steps. Got one that no step was "
                "compiled for: save that of `remat_train_step(...).plan(...)` or `fit`."
            )
        figures = {name: getattr(self, name) for name in FIGURES}
        return self.recipe.text(str(self), figures)

    @property
    def is_unmodified(self) -> bool:
        """Whether the step fits as written: then it is not changed."""
        return self.schedule is None and not self.loops

    def _device(self) -> str:
        memory = self.target_bytes
        shown = self.target + ("" if memory is None else f" ({format_bytes(memory)})")
        several = f", per device, {self.num_devices} devices"
        return shown + several * (self.num_devices > 1)

    def __str__(self) -> str:
        def line(name: str, count: int | None) -> str:
            if count is None:
                return f"  {name:<12} not compiled here"
            ratio = count / max(self.unmodified_bytes, 1)
            return f"  {name:<12} {format_bytes(count):>12}  {ratio:6.1%}"

        lines = [
            f"coop_jax plan for {self._device()}"
            + (": the step fits as written" * self.is_unmodified),
            line("unmodified", self.unmodified_bytes),
            line("budget", self.budget_bytes),
        ]
        if self.worthwhile_bytes is not None:
            shown = line("worthwhile", self.worthwhile_bytes)
            lines.append(f"{shown}  more memory would take more time than it saves")
        lines += [
            line("predicted", self.predicted_bytes),
            line("measured", self.measured_bytes),
        ]
        if not self.is_unmodified:
            share = self.recomputed_flops / max(self.total_flops, 1)
            time = f"modelled time x{self.compute_overhead:.3f}"
            if self.executable_overhead is not None:
                time = f"executable x{self.executable_overhead:.3f}"
            lines.append(
                f"  recomputed   {self.recomputed_flops:.3g} FLOPs ({share:+.1%}), "
                f"{time}, {self.num_fences} fences"
            )
            if self.num_inside_readers:
                lines.append(
                    f"  inside       {self.num_inside_readers} equations again, fused into "
                    "their readers"
                )
            if self.arena is not None:
                lines.append(
                    f"  arena        {format_bytes(self.arena.arena_bytes):>12}  "
                    f"{len(self.arena.stays)} stays, copies "
                    f"{format_bytes(self.arena.copied_bytes)} a step"
                )
            lines += recomputation_lines(self.recomputations, "    ")
            for loop in self.loops:
                lines += loop_lines(loop)
        lines.append(f"  compilations {self.num_compilations}")
        return "\n".join(lines)


def unmodified_plan(
    device: Any,
    budget_bytes: int,
    unmodified_bytes: int,
    num_compilations: int,
    total_flops: int,
    num_devices: int,
) -> Plan:
    """The plan of a step that fits as written."""
    return Plan(
        target=_name(device),
        target_bytes=memory_bytes(device),
        budget_bytes=budget_bytes,
        unmodified_bytes=unmodified_bytes,
        predicted_bytes=unmodified_bytes,
        measured_bytes=unmodified_bytes,
        compute_overhead=1.0,
        recomputed_flops=0,
        total_flops=total_flops,
        num_compilations=num_compilations,
        num_fences=0,
        recomputations=(),
        schedule=None,
        num_devices=num_devices,
    )


def planned_plan(
    device: Any,
    budget_bytes: int,
    unmodified_bytes: int,
    num_compilations: int,
    measured: Measured,
    num_devices: int,
) -> Plan:
    """The report of the plan that was accepted.

    Arguments:
        device: the device that the step was compiled for, or one of several.
        budget_bytes: the budget.
        unmodified_bytes: XLA's figure for the step as written.
        num_compilations: the number of compilations by XLA.
        measured: the compiled candidate.
        num_devices: the number of devices that the step is divided over.
    """
    chosen = measured.candidate
    graph = chosen.graph
    segments = chosen.realized.segments
    again = _recomputations(graph, segments)
    return Plan(
        target=_name(device),
        target_bytes=memory_bytes(device),
        budget_bytes=budget_bytes,
        unmodified_bytes=unmodified_bytes,
        predicted_bytes=chosen.predicted_bytes,
        measured_bytes=measured.total_bytes,
        compute_overhead=overhead_of_read(graph, chosen.schedule, executions_in(segments)),
        recomputed_flops=sum(item.flops for item in again),
        total_flops=sum(graph.flops),
        num_compilations=num_compilations,
        num_fences=_num_fences(graph, segments),
        recomputations=again,
        schedule=chosen.schedule,
        arena=chosen.realized.arena,
        num_devices=num_devices,
    )


def _num_fences(graph: StepGraph, segments: Sequence[Segment]) -> int:
    """Boundaries between segments, the fences of partial results, and those of the program
    that was planned."""
    executed = (execution.operation for execution in executions_in(segments))
    own = sum(eqn.primitive is fence_p for eqn in graph.program.eqns)
    return own + len(segments) - 1 + sum(op in graph.partial_results for op in executed)


def with_work_inside_readers(
    plan: Plan, program: Program, again: Sequence[int], target: Target
) -> Plan:
    """A plan of a program that makes values again inside of their readers, or layers.

    Arguments:
        plan: the plan of that program.
        program: the step as written.
        again: the equations that it makes again, by index.
        target: the device, for the modelled time of what XLA does not fuse.
    """
    return with_work_again(plan, program, [program.eqns[i] for i in again], target)


def with_work_again(
    plan: Plan, program: Program, eqns: Sequence[Any], target: Target
) -> Plan:
    """A plan of a program that runs equations of the step again, beside what is evicted.

    Arguments:
        plan: the plan of that program.
        program: the step as written.
        eqns: the equations, each as often as it runs again.
        target: as of `with_work_inside_readers`.
    """
    items = _by_source((eqn, flops(eqn)) for eqn in eqns)
    again_flops = sum(item.flops for item in items)
    unfused = [eqn for eqn in eqns if not is_fusible(eqn)]
    seconds, whole = (
        math.fsum(seconds_again(eqn, target) for eqn in some)
        for some in (unfused, program.eqns)
    )
    return dataclasses.replace(
        plan,
        compute_overhead=plan.compute_overhead * (1 + (seconds and seconds / whole)),
        recomputed_flops=plan.recomputed_flops + again_flops,
        total_flops=sum(map(flops, program.eqns)),
        num_inside_readers=len(eqns) - len(unfused),
        recomputations=_most_first((*plan.recomputations, *items)),
    )


def with_loops(
    plan: Plan,
    planned: Sequence[PlannedPair],
    bodies: Sequence[TightBody],
    step_seconds: float,
    total_flops: int,
) -> Plan:
    """A plan of a step whose loops are planned, too.

    Arguments:
        plan: the plan of the step around the loops.
        planned: the pairs of loops.
        bodies: the bodies of loops that are planned for fewer bytes.
        step_seconds: modelled time of the step as written.
        total_flops: floating point operations of the step as written.
    """
    again = [item for pair in planned for item in recomputations_of(pair)]
    seconds = sum(pair.recompute_seconds for pair in planned)
    seconds += sum(body.recompute_seconds for body in bodies)
    inside = [_recomputations(body.graph, body.segments) for body in bodies]
    recomputed_flops = sum(item.flops for item in again)
    for body, items in zip(bodies, inside, strict=True):
        recomputed_flops += body.num_runs * sum(item.flops for item in items)
    loops = [loop_plan(pair, plan.num_devices) for pair in planned]
    for body, items in zip(bodies, inside, strict=True):
        live_bytes = body.schedule.statistics.max_live_bytes
        where = body.eqn, body.path[-1]
        loops.append(body_plan(*where, live_bytes, items, plan.num_devices))
    return dataclasses.replace(
        plan,
        compute_overhead=plan.compute_overhead + seconds / step_seconds,
        recomputed_flops=plan.recomputed_flops + recomputed_flops,
        total_flops=total_flops,
        num_fences=plan.num_fences + sum(len(body.segments) - 1 for body in bodies),
        loops=tuple(loops),
    )


def _name(device: Any) -> str:
    """The device's name in the table of targets, or else its own `device_kind`."""
    target = known_target(device)
    return device.device_kind if target is None else target.name


def _recomputations(graph: StepGraph, segments: list[Segment]) -> tuple[Recomputation, ...]:
    """The recomputations of a plan by source line and primitive, most FLOPs first."""
    return _by_source(
        (graph.equation(execution.operation), graph.flops[execution.operation])
        for execution in run_again(read_executions(graph, executions_in(segments)))
    )


def _by_source(recomputed: Iterable[tuple[Any, int]]) -> tuple[Recomputation, ...]:
    """Recomputed equations, each with its FLOPs, by source line and primitive."""
    counts: collections.Counter = collections.Counter()
    work: collections.Counter = collections.Counter()
    for eqn, num_flops in recomputed:
        key = _compat.source_line(eqn), original(eqn).primitive.name
        counts[key] += 1
        work[key] += num_flops
    return _most_first(
        Recomputation(source, primitive, counts[source, primitive], num_flops)
        for (source, primitive), num_flops in work.items()
    )


def _most_first(items: Iterable[Recomputation]) -> tuple[Recomputation, ...]:
    return tuple(sorted(items, key=lambda item: (-item.flops, item.source)))
