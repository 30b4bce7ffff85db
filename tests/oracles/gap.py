"""How far a planner is from the optimum, in shares of the step."""

from __future__ import annotations

import dataclasses
from typing import Any

from oracles.rematerialization_ilp import Optimum, least_recomputation


@dataclasses.dataclass(frozen=True)
class Gap:
    """(ours - optimum) / program seconds, between two figures.

    Attributes:
        at_least: against the best schedule that the oracle found.
        at_most: against its bound; equal to `at_least` where the optimum is proven.
        optimum: the oracle's answer; None: the oracle found that there is no schedule of
            ascending passes that is as good as ours.
    """

    at_least: float
    at_most: float
    optimum: Optimum | None


def optimality_gap(
    graph: Any, capacity: int, recompute_seconds: float, **options: Any
) -> Gap:
    """The gap of a plan of `graph` in `capacity` bytes that recomputes for so long.

    The optimum knows no fragmentation, so a gap need not be the planner's fault. It is
    that of `passes` ascending passes per operation: a plan in another order can be
    better, and its gap negative or, with `optimum` None, 0.

    Arguments:
        options: of `least_recomputation`.
    """
    program_seconds = float(graph.op_seconds.sum()) or 1.0
    optimum = least_recomputation(
        graph.arrays(), capacity, at_most=recompute_seconds, **options
    )
    if optimum is None:
        return Gap(0.0, 0.0, None)
    return Gap(
        at_least=max(recompute_seconds - optimum.seconds, 0.0) / program_seconds,
        at_most=(recompute_seconds - optimum.bound) / program_seconds,
        optimum=optimum,
    )
