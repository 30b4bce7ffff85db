"""Loop plan: what a user reads of a planned pair of loops."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base.budget import format_bytes
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.part_body import own_values
from coop_jax.loops.parts import Part, PlannedPair
from coop_jax.trace.costs import aval_bytes, flops
from coop_jax.trace.program import writes
from coop_jax.trace.shard_types import num_devices_of

_LINES_IN_REPORT = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Recomputation:
    """Recomputed work that comes from one line of the user's program.

    Attributes:
        source: file and line.
        primitive: the JAX primitive that is evaluated again.
        count: number of repeated evaluations in one step.
        flops: floating point operations of all of them.
    """

    source: str
    primitive: str
    count: int
    flops: int


@dataclasses.dataclass(frozen=True, slots=True)
class IterationsPlan:
    """Consecutive iterations of a loop that keep the same values for its gradient.

    Attributes:
        first, last: the iterations, from 0, in the order in which they run.
        group: 1, or the iterations of a group: only what is carried into a group is kept,
            and each group runs again before its gradient.
        kept_bytes: bytes that each of them keeps on a device, while its group runs again.
        kept: what these are, as `f32[8,256] of dot_general at model.py:12 (...)`, most
            bytes first.
        recomputations: what each of them evaluates again, most operations first.
    """

    first: int
    last: int
    group: int
    kept_bytes: int
    kept: tuple[str, ...]
    recomputations: tuple[Recomputation, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LoopPlan:
    """How a `scan` and the `scan` of its gradient are planned, or the body of a loop, or a
    branch of a `cond`.

    Attributes:
        source: file and line of the loop, or of the `cond`.
        length: its iterations; None where they are not known, and of a `cond`.
        parts: what they keep for the gradient, in the order in which they run.
        live_bytes: bytes alive at once in an iteration or a branch that is planned, beside
            its operands; None where only `parts` are.
        recomputations: what it evaluates again for that, most operations first.
        num_runs: how often a loop with `parts` runs in a step: more than once inside of
            another loop.
        kind: "scan", "while_loop" or "cond".
        branch: of a `cond` or `switch`, the number of the branch; that for False is 0.
    """

    source: str
    length: int | None
    parts: tuple[IterationsPlan, ...]
    live_bytes: int | None = None
    recomputations: tuple[Recomputation, ...] = ()
    num_runs: int = 1
    kind: str = "scan"
    branch: int | None = None


def loop_plan(planned: PlannedPair, num_devices: int) -> LoopPlan:
    """The report of a planned pair.

    Arguments:
        num_devices: the number of devices that the step is divided over.
    """
    iteration = planned.iteration
    forward = iteration.pair.forward
    parts = [_iterations_plan(iteration, part, num_devices) for part in planned.parts]
    if forward.is_reversed:
        parts.reverse()
    source = _compat.source_line(forward.eqn)
    return LoopPlan(source, forward.length, tuple(parts), num_runs=planned.num_runs)


def body_plan(
    eqn: Any,
    number: int,
    live_bytes: int,
    recomputations: tuple[Recomputation, ...],
    num_devices: int,
) -> LoopPlan:
    """The report of a planned body of an equation.

    Arguments:
        number: of the body, as of `loops.bodies`.
        live_bytes: of its values, whole or shards as the equation's.
        num_devices: as of `loop_plan`.
    """
    name = eqn.primitive.name
    live_bytes = live_bytes * num_devices_of(eqn) // num_devices
    return LoopPlan(
        _compat.source_line(eqn),
        eqn.params.get("length"),
        (),
        live_bytes,
        recomputations,
        kind="while_loop" if name == "while" else name,
        branch=number if name == "cond" else None,
    )


def recomputations_of(planned: PlannedPair) -> tuple[Recomputation, ...]:
    """The recomputations of all iterations of a pair, most operations first."""
    counts: collections.Counter = collections.Counter()
    for part in planned.parts:
        for eqn, count in _again(planned.iteration, part):
            counts[eqn] += count * part.count * planned.num_runs
        if part.group > 1:
            for eqn in planned.iteration.forward:
                counts[eqn] += part.count * planned.num_runs
    return _summed(counts.items())


def _again(iteration: Iteration, part: Part) -> Iterator[tuple[Any, int]]:
    """What the backward body of a part evaluates again, and how often."""
    yield from ((eqn, 1) for eqn in part.retained.recomputed)
    for pair in part.inside(iteration):
        for inner in pair.parts:
            for eqn, count in _again(pair.iteration, inner):
                yield eqn, count * inner.count


def _iterations_plan(iteration: Iteration, part: Part, num_devices: int) -> IterationsPlan:
    forward = iteration.pair.forward
    first = part.start
    if forward.is_reversed:
        first = forward.length - part.start - part.count
    makers = {v: eqn for eqn in iteration.forward for v in writes(eqn)}
    own = (v for v in own_values(iteration, part.retained) if aval_bytes(v.aval))
    kept = sorted(own, key=lambda v: -aval_bytes(v.aval))
    return IterationsPlan(
        first,
        first + part.count - 1,
        part.group,
        part.retained.kept_bytes // num_devices,
        tuple(_described(v, makers.get(v)) for v in kept),
        _summed(_again(iteration, part)),
    )


def _title(loop: LoopPlan) -> str:
    if loop.branch is not None:
        return f"branch {loop.branch} of the cond"
    if loop.length is None:
        return loop.kind
    return f"loop of {loop.length} iterations"


def _of_group(part: IterationsPlan) -> str:
    if part.group == 1:
        return ""
    return (
        f" while their group of {part.group} runs again: it keeps what is carried into it"
    )


def _described(var: Any, maker: Any | None) -> str:
    text = f"{var.aval.str_short()} "
    if maker is None:
        return text + "that the iteration before hands on"
    return text + f"of {maker.primitive.name} at {_compat.source_line(maker)}"


def _summed(counted: Iterable[tuple[Any, int]]) -> tuple[Recomputation, ...]:
    """Equations with how often each runs again, by source line and primitive."""
    counts: collections.Counter = collections.Counter()
    work: collections.Counter = collections.Counter()
    for eqn, count in counted:
        key = _compat.source_line(eqn), eqn.primitive.name
        counts[key] += count
        work[key] += count * flops(eqn)
    items = [
        Recomputation(source, primitive, counts[source, primitive], operations)
        for (source, primitive), operations in work.items()
        if operations
    ]
    return tuple(sorted(items, key=lambda item: (-item.flops, item.source)))


def recomputation_lines(items: Sequence[Recomputation], indent: str) -> list[str]:
    """The first recomputations as lines of a report."""
    lines = [
        f"{indent}{item.count:4d} x {item.primitive} at {item.source}, "
        f"{item.flops:.3g} FLOPs"
        for item in items[:_LINES_IN_REPORT]
    ]
    hidden = len(items) - _LINES_IN_REPORT
    return lines + [f"{indent}and {hidden} more lines"] * (hidden > 0)


def loop_lines(loop: LoopPlan) -> list[str]:
    """A planned loop as lines of a report."""
    runs = f", run {loop.num_runs} times" if loop.num_runs > 1 else ""
    lines = [f"  {_title(loop)} at {loop.source}{runs}"]
    for part in loop.parts:
        lines.append(
            f"    iterations {part.first}-{part.last} keep "
            f"{format_bytes(part.kept_bytes)} each{_of_group(part)}"
        )
        lines += [f"      {text}" for text in part.kept[:_LINES_IN_REPORT]]
        hidden = len(part.kept) - _LINES_IN_REPORT
        lines += [f"      and {hidden} more"] * (hidden > 0)
        if part.recomputations:
            lines.append("    and each evaluates again")
            lines += recomputation_lines(part.recomputations, "      ")
    if loop.live_bytes is not None:
        run = "an iteration" if loop.branch is None else "it"
        lines.append(f"    {run} has {format_bytes(loop.live_bytes)} alive at once")
    if loop.recomputations:
        lines.append("    and evaluates again, to have no more")
        lines += recomputation_lines(loop.recomputations, "      ")
    return lines
