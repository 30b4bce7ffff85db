"""The planner's graph of a step as XLA:CPU compiles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coop_jax import backends, planning, targets
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph


def stored_graph(
    step: Callable[..., Any], arguments: tuple, target: str, donate_argnums: Any = 0
) -> planning.Graph:
    """Stored values and order as XLA:CPU has them, rates by the data sheet of `target`:
    the same on every machine."""
    traced = TracedStep.trace(step, {"donate_argnums": donate_argnums}, arguments, {})
    compiled = traced.compile(stored_values.tag(traced.program))
    stored = backends.stored_values(traced.program, compiled)
    return build_graph(traced.program, stored, targets.named(target)).core
