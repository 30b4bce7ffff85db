"""Combined sums: fences between sums over devices that XLA would make all at once.

XLA:CPU makes one collective of all the sums over devices that do not depend on each other,
at the last of them: everything that they read and make is alive at once there. A step under
`shard_map` that averages its gradients has all of these twice at its end, where the plan
updates one weight after the other. A fence between two sums keeps them apart. It takes XLA
the chance of one exchange for many, so it stands only where the plan needs it.
"""

from __future__ import annotations

from coop_jax.emit.segments import NOTICEABLE
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule, decoded

_SUMS = frozenset(("psum", "psum_invariant"))


def fences_between_sums(graph: StepGraph, schedule: AnySchedule) -> frozenset[int]:
    """Numbers of the executions that need a fence before them: of sums over devices, where
    what the sums before read and made would lift the live bytes above the plan's maximum
    if it was freed late, once it is a noticeable part of that."""
    sums = {
        number
        for number, operation in enumerate(graph.operations)
        if graph.program.eqns[operation.anchor].primitive.name in _SUMS
    }
    if len(sums) < 2:
        return frozenset()
    size = graph.in_pool_bytes
    limit = schedule.statistics.max_live_bytes
    summed: set[int] = set()  # Tensors of the sums since the last of these fences.
    found: set[int] = set()
    number, live, freed = 0, 0, 0
    for step in decoded(schedule):
        if not step.runs:
            live -= size[step.index]
            freed += size[step.index] if step.index in summed else 0
            continue
        made = [tensor for tensor, _ in step.placed]
        live += sum(size[tensor] for tensor in made)
        if step.index in sums:
            if freed > NOTICEABLE * limit and live + freed > limit:
                found.add(number)
                summed, freed = set(), 0
            summed.update(graph.operations[step.index].inputs, made)
        number += 1
    return frozenset(found)
