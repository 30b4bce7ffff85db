"""Live bytes feedback: bytes a compiled plan keeps alive beyond its schedule, and where.

The stored values of a step are read from the step as written. A plan's fences make other
fusions: of a GELU that is recomputed next to its gradient, three intermediate values are
stored where the step as written stores none. So the executable of a plan that missed is
read as well: at every execution, the bytes that XLA keeps alive beyond the plan become
scratch of that operation, and the next plan makes room for it.
"""

from __future__ import annotations

import re
from typing import Any

from coop_jax.emit.rewrite import EXECUTION_SCOPE
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.xla.buffer_assignment import published_module, temporary_addresses
from coop_jax.xla.hlo_module import HloModule
from coop_jax.xla.liveness import live_bytes

_EXECUTION = re.compile(rf"\b{EXECUTION_SCOPE}(\d+)\b")


def scratch_needed(
    graph: StepGraph, schedule: AnySchedule, compiled: Any
) -> dict[int, int]:
    """Scratch in bytes, by equation, with which the plan would have had XLA's live bytes.

    Arguments:
        graph: the graph that the schedule was planned on.
        schedule: the plan's schedule.
        compiled: the executable of the rewritten program.

    Returns:
        The scratch of operations where XLA keeps more alive than the plan, by the index of
        their anchor equation; empty where XLA does not publish its schedule.
    """
    module = published_module(compiled)
    if module is None or not module.sequences.get(module.entry):
        return {}
    actual = live_bytes(module, temporary_addresses(compiled, module))
    lives = lifetimes(graph, schedule)
    planned = lives.live_bytes(graph.in_pool_bytes)
    scratch: dict[int, int] = {}
    for at, execution in enumerate(executions_by_instruction(module)):
        if execution is None or execution >= len(planned):
            continue  # The scope of another plan's executable, from the compilation cache.
        more = int(actual[at] - planned[execution])
        if more > 0:
            equation = graph.operations[lives.operation[execution]].anchor
            needed = int(lives.workspace_bytes[execution]) + more
            scratch[equation] = max(scratch.get(equation, 0), needed)
    return scratch


def executions_by_instruction(module: HloModule) -> list[int | None]:
    """The plan's execution that each instruction of the schedule belongs to, None for
    those after the last that names one.

    An instruction without a name is a copy or a transposition for the next instruction.
    """
    found: list[int | None] = []
    following: int | None = None
    for number in reversed(module.sequences[module.entry]):
        instruction = module.instructions[number]
        names = [instruction.op_name]
        if instruction.called:
            root = module.instructions.get(module.roots.get(instruction.called[0], -1))
            names.append(root.op_name if root is not None else "")
        numbers = [n for name in names for n in _EXECUTION.findall(name)[-1:]]
        following = int(numbers[0]) if numbers else following
        found.append(following)
    return found[::-1]
