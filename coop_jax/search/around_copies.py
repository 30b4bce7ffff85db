"""Around copies: the plan that recomputes least and leaves room for gathered values.

Which copies are alive when is known only with a plan's fences (`search.copies_alive`). So a
plan without room for them is made again within fewer bytes, which has other fences; and if
that does not help, with its copies counted as scratch. The search ends: it makes at most
`_MOST_PLANS` within fewer and fewer bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule
from coop_jax.plan.planner import Planned
from coop_jax.search.copies_alive import LiveWithCopies

_MOST_PLANS = 4
# The next plan gets fewer bytes by at most one over this number.
_LARGEST_STEP = 8

# As `plan.planner.least_recomputation`, with its options.
Plan = Callable[[Sequence[StepGraph], int, int | None], Planned | None]
Live = Callable[[StepGraph, AnySchedule], LiveWithCopies]


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    """A plan with its copies."""

    planned: Planned
    live: LiveWithCopies

    def key(self, limit: int) -> tuple[bool, float]:
        """Orders plans: those within a limit by what they recompute, then the others."""
        if self.live.most_bytes > limit:
            return True, self.live.most_bytes
        return False, self.planned[1].statistics.recompute_seconds


def planned_around_copies(
    graphs: Sequence[StepGraph],
    plan: Plan,
    room: int,
    preferred: int | None,
    live: Live,
) -> Planned | None:
    """The plan that recomputes least of those that keep to their bytes with copies; if
    none does, the one that needs the fewest; None if there is no plan.

    Arguments:
        plan: returns the plan that recomputes least.
        graphs, room, preferred: as of `least_recomputation`.
        live: returns the live bytes of a plan with its copies.
    """

    def made(graphs: Sequence[StepGraph], aim: int | None) -> _Made | None:
        planned = plan(graphs, room, aim)
        return None if planned is None else _Made(planned, live(*planned))

    first = made(graphs, preferred)
    if first is None:
        return None
    limit = room if preferred is None else min(room, preferred)
    # Some operation may need more than the plan prefers.
    limit = max(limit, first.planned[1].statistics.max_live_bytes)
    plans, last = [first], first
    aim = limit
    while len(plans) < _MOST_PLANS and last is not None and last.live.most_bytes > limit:
        # A fence more may leave half of the copies out: not all at once.
        aim -= min(last.live.most_bytes - limit, limit // _LARGEST_STEP)
        last = made([first.planned[0]], aim)
        plans += [last] if last is not None else []
    if min(plan.key(limit) for plan in plans)[0]:
        counted = first.planned[0].with_scratch(first.live.scratch_bytes)
        last = made([counted], preferred)
        plans += [last] if last is not None else []
    return min(plans, key=lambda plan: plan.key(limit)).planned
