"""A step in an arena, planned once, that tests may tamper with."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from steps import compiled_graph, mlp_arguments, mlp_step, traced

from coop_jax.arena.layout import ArenaPlan, plan_arena
from coop_jax.arena.stats import new_exchange_log
from coop_jax.arena.writer import rewrite_with_arena
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.hints import NO_HINTS
from coop_jax.emit.segments import Segment
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.planner import PlanOptions, plan_pool, unconstrained
from coop_jax.targets import Target

# Bandwidth for nothing: whatever waits is worth its copies.
EAGER = Target("eager", "cpu", {32: 1e11, 16: 1e11}, 1e16, 64)


@dataclasses.dataclass(frozen=True, eq=False)
class StepInArena:
    step: TracedStep
    args: tuple[Any, ...]
    graph: StepGraph
    schedule: Any
    segments: list[Segment]
    plan: ArenaPlan

    def compiled(
        self, plan: ArenaPlan | None = None, exchange_log: int | None = None
    ) -> Any:
        """With another plan than its own, if given."""
        plan = self.plan if plan is None else plan
        program = rewrite_with_arena(
            self.graph, self.segments, NO_HINTS, plan, exchange_log
        )
        return self.step.compile(program)

    def run(self, plan: ArenaPlan | None = None, exchange_log: int | None = None) -> Any:
        return jax.block_until_ready(self.compiled(plan, exchange_log)(*self.args))

    def checked(self, plan: ArenaPlan | None = None) -> Any:
        """Run with an exchange log of its own."""
        return self.run(plan, new_exchange_log())

    def moved(self, number: int, **change: Any) -> ArenaPlan:
        """Its plan with one stay changed."""
        stays = list(self.plan.stays)
        stays[number] = dataclasses.replace(stays[number], **change)
        return dataclasses.replace(self.plan, stays=tuple(stays))


@functools.cache
def step_in_arena(percent: int = 50, dtype: str = "float32") -> StepInArena:
    """An MLP's step at a part of what it keeps alive."""
    args = mlp_arguments(dtype=dtype)
    step = traced(mlp_step, *args)
    graph = compiled_graph(step)
    options = PlanOptions(policy="search", limits_live_bytes=True)
    largest = unconstrained(graph, options).statistics.max_live_bytes
    schedule = plan_pool(graph, largest * percent // 100, options)
    segments, plan = plan_arena(
        graph, schedule, EAGER, fence_free_inputs=False, is_guarded=False
    )
    return StepInArena(step, args, graph, schedule, segments, plan)
