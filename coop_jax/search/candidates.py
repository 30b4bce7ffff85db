"""Candidates: a plan for a budget with its program, and what XLA says of it."""

from __future__ import annotations

import dataclasses
from typing import Any

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.search.placements import Realization

# Compilations of plans until one keeps a budget; of the tightest ones until it is refused;
# of others where one of the tightest keeps it.
MAX_COMPILATIONS = 3
MAX_TIGHTEST = 2
MAX_BESIDE_TIGHTEST = 2
# After a miss the next plan uses at least this part of the room less.
LEAST_STEP = 100
# One more compilation, to recompute less, is worth it if the plan leaves this part of the
# room unused, and if it recomputes for at least this part of the step's time.
SLACK_WORTH_USING = 0.04
GAIN_WORTH_TRYING = 0.02


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A plan with its rewritten program.

    `planned_bytes` is what the schedule needs by itself, `predicted_bytes` that and the
    error that an earlier plan showed.
    """

    graph: StepGraph
    schedule: AnySchedule
    realized: Realization
    planned_bytes: int
    predicted_bytes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A compiled candidate with XLA's figure; not compiled where XLA refuses to."""

    candidate: Candidate
    compiled: Any
    total_bytes: int

    @property
    def recompute_seconds(self) -> float:
        return self.candidate.schedule.statistics.recompute_seconds


def least(measured: Measured) -> tuple[bool, int]:
    """Orders steps by what they need; those that XLA refuses to compile come last."""
    return (measured.compiled is None, measured.total_bytes)
