"""Learnt scratch: a step's graphs with the bytes that XLA kept alive beyond plans of them.

The executable of a plan is read: what XLA keeps alive beyond the plan becomes scratch of
the next plan's operations (`search.live_bytes_feedback`).
"""

from __future__ import annotations

from coop_jax.plan.planner import Planned
from coop_jax.search.candidates import Measured
from coop_jax.search.live_bytes_feedback import scratch_needed
from coop_jax.search.problem import Problem


class LearntScratch:
    """The graphs of a problem, with the scratch that was learnt from compiled plans.

    Attributes:
        graphs: they.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.forget()

    def plan(self, room: int, preferred: int | None = None) -> Planned | None:
        """The plan that recomputes least within a room, with the scratch learnt so far."""
        return self._problem.plan(self.graphs, room, preferred)

    def forget(self) -> None:
        """Plan the graphs as they were read at first again."""
        self.graphs, self._scratch = self._problem.graphs, {}

    @property
    def has_learnt(self) -> bool:
        """Whether scratch is added to the graphs."""
        return bool(self._scratch)

    def learn(self, planned: Planned, measured: Measured) -> bool:
        """Add the bytes that XLA kept alive beyond the plan to the graphs, as scratch;
        returns whether there were any."""
        problem = self._problem
        if problem.with_scratch is None or measured.compiled is None:
            return False
        if measured.candidate.realized.arena is not None:
            return False
        needed = scratch_needed(*planned, problem.read(measured))
        for index, size in needed.items():
            self._scratch[index] = max(self._scratch.get(index, 0), size)
        if needed:
            self.graphs = problem.with_scratch(self._scratch)
        return bool(needed)
