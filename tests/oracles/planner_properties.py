"""What must hold of every plan of the search, tried on one random graph.

`violations(seed)` makes a graph, plans it in several ways, and says what did not hold. All
is by the seed, so that a violation can be looked at again.

    room       more room never costs recomputation, nor does it make a plan impossible,
               where the plan for less room is known (`planning.plan_pools`).
    alone      the same where it is not known. The search does not promise that.
    effort     more effort never costs recomputation.
    limit      a plan within `overhead_limit` is found as without, one above is refused.
    online     no online planner finds a plan that recomputes less, or finds one alone.
    start      no worse than the plans that the search starts from: what it finds without
               effort and, where everything fits, keeping everything.
    deadline   `seconds` is kept within a tenth.
    valid      the independent validator finds nothing, bytes alive included, and the plan
               is not below the lower bound that comes with it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from oracles import random_graphs

from coop_jax import _ext, planning

PROPERTIES = (
    "room", "alone", "effort", "limit", "online", "start", "deadline", "valid"
)  # fmt: skip
ONLINE = ("coop", "lookahead", "dtr", "dte")
FEWEST, MOST = 5, 1000  # Operations; the sizes are uniform in their logarithm.
LARGE = 40  # Two rooms, and effort, limit and online planners in turn.
LARGEST = 300  # Above, one of rooms, effort, limit and online planners.
EFFORT = 20_000
PACKING_EFFORT = 200_000
DEADLINE_SECONDS = 0.5
DEADLINE_EVERY = 100  # Graphs: a plan with a deadline takes all of it.
# Relative: sums of the same seconds in another order.
ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class Violation:
    """What did not hold: by how much, in parts of the program's seconds (of the deadline,
    for that; infinite where there is no plan at all), and in which plan."""

    property: str
    seed: int
    excess: float
    what: str

    def __str__(self) -> str:
        return f"{self.property}: seed {self.seed}, {100 * self.excess:.3f} %: {self.what}"


@dataclasses.dataclass
class Report:
    """Of one graph: how often each property was tried, and what did not hold."""

    seed: int
    family: str
    num_ops: int
    tried: dict[str, int]
    violations: list[Violation]


def graph_of(seed: int) -> tuple[str, planning.Graph]:
    """Family and graph."""
    names = list(random_graphs.FAMILIES)
    family = names[seed % len(names)]
    size = np.random.default_rng([seed, 0]).uniform(np.log(FEWEST), np.log(MOST + 1))
    return family, random_graphs.FAMILIES[family](int(np.exp(size)), seed)


def report(seed: int, largest: int = LARGEST) -> Report:
    """Tries all of them on the graph of `seed`; none on one of more than `largest`."""
    family, graph = graph_of(seed)
    tries = _Tries(seed, graph)
    if graph.num_ops <= largest:
        tries.run()
    return Report(seed, family, graph.num_ops, tries.tried, tries.violations)


def rooms_of(seed: int, least: int, most: int, is_large: bool = False) -> list[int]:
    """Three of random shares, and one within 1 % above the middle one. Of a large graph,
    which takes longest where there is no plan: one in the upper third, and one above."""
    random = np.random.default_rng([seed, 1])
    if is_large:
        rooms = [most - int(random.random() / 3 * (most - least))]
    else:
        rooms = sorted(least + int(u * (most - least)) for u in random.random(3))
    near = rooms[len(rooms) // 2]
    return sorted([*rooms, int(near * (1 + 0.01 * random.random()))])


class _Tries:
    def __init__(self, seed: int, graph: planning.Graph) -> None:
        self.seed = seed
        self.graph = graph
        self.limits_live_bytes = bool((seed // len(random_graphs.FAMILIES)) % 2)
        self.program_seconds = float(graph.op_seconds.sum())
        self.tried = dict.fromkeys(PROPERTIES, 0)
        self.violations: list[Violation] = []

    def run(self) -> None:
        unconstrained = _ext.unconstrained(self.graph, self.options()).statistics
        peak = unconstrained.peak_bytes
        if self.limits_live_bytes:
            peak = unconstrained.max_live_bytes
        is_large = self.graph.num_ops > LARGE
        rooms = rooms_of(self.seed, planning.lower_bound(self.graph)[0], peak, is_large)
        self.no_worse("start", self.plan(peak), 0.0, f"{peak}, everything fits")
        tries = [self.effort, self.limit, self.online]
        # In turn: seeds of a family are as far apart as there are families.
        turn = self.seed // len(random_graphs.FAMILIES) // 2
        if self.graph.num_ops > LARGEST:
            turn %= 1 + len(tries)
            if turn < len(tries):
                tries[turn](rooms[-1], self.plan(rooms[-1]))
                return
            tries = []
        found = self.in_rooms(rooms)
        # Where there is a plan, if anywhere: there is most to compare.
        some = [k for k in range(1, len(rooms)) if _seconds(found[k]) < np.inf]
        picks = some or range(1, len(rooms))
        pick = int(np.random.default_rng([self.seed, 2]).choice(picks))
        room, plan = rooms[pick], self.plan(rooms[pick])
        less = _seconds(found[pick - 1])
        self.no_worse("alone", plan, less, f"{room}, {rooms[pick - 1]}")
        for k, try_ in enumerate(tries):
            if not is_large or k == turn % len(tries):
                try_(room, plan)
        if self.seed % DEADLINE_EVERY == 0:
            self.deadline(room)

    def in_rooms(self, rooms: Sequence[int]) -> list[Any]:
        """Each from what was found for less room."""
        found: list[Any] = []
        known = None
        for k, room in enumerate(rooms):
            found.append(self.validated(room, self.options(), known))
            if k:
                less = _seconds(found[k - 1])
                self.no_worse("room", found[k], less, f"{room}, {rooms[k - 1]}")
            if isinstance(found[k], _ext.Schedule):
                known = found[k]
        return found

    def effort(self, room: int, plan: Any) -> None:
        less = self.plan(room, search_effort=EFFORT // 4)
        more = self.plan(room, search_effort=EFFORT * 4)
        self.no_worse("effort", plan, _seconds(less), f"{room}, effort / 4")
        self.no_worse("effort", more, _seconds(plan), f"{room}, effort * 4")
        none = self.plan(room, search_effort=0)
        self.no_worse("start", plan, _seconds(none), f"{room}, without effort")

    def online(self, room: int, plan: Any) -> None:
        for policy in ONLINE:
            others = _ext.PlanOptions(policy=policy, overhead_limit=20)
            other = _seconds(self.validated(room, others))
            self.no_worse("online", plan, other, f"{room}, {policy}")

    def limit(self, room: int, plan: Any) -> None:
        if not isinstance(plan, _ext.Schedule):
            return
        overhead = 1 + _seconds(plan) / self.program_seconds
        same = self.plan(room, overhead_limit=overhead * (1 + ROUNDING))
        is_same = isinstance(same, _ext.Schedule) and np.array_equal(same.steps, plan.steps)
        self.check("limit", is_same, _seconds(same), f"{room}, {overhead} allowed")
        if overhead > 1:
            limit = 1 + 0.9 * (overhead - 1)
            refused = self.plan(room, overhead_limit=limit)
            is_refused = not isinstance(refused, _ext.Schedule)
            self.check("limit", is_refused, _seconds(refused), f"{room}, {limit} allowed")

    def deadline(self, room: int) -> None:
        start = time.perf_counter()
        self.plan(room, seconds=DEADLINE_SECONDS)
        took = (time.perf_counter() - start) / DEADLINE_SECONDS
        self.check("deadline", took <= 1.1, took - 1, f"{room}, {DEADLINE_SECONDS} s")

    def no_worse(self, name: str, plan: Any, seconds: float, what: str) -> None:
        ours = _seconds(plan)
        excess = (ours - seconds) / self.program_seconds if seconds < np.inf else 0.0
        self.check(name, excess <= ROUNDING, excess, what)

    def check(self, name: str, holds: bool, excess: float, what: str) -> None:
        self.tried[name] += 1
        if not holds:
            self.violations.append(Violation(name, self.seed, excess, what))

    def options(self, **others: Any) -> Any:
        return _ext.PlanOptions(
            **{
                "policy": "search",
                "search_effort": EFFORT,
                "packing_effort": PACKING_EFFORT,
                "limits_live_bytes": self.limits_live_bytes,
                **others,
            }
        )

    def plan(self, room: int, **others: Any) -> Any:
        return self.validated(room, self.options(**others))

    def validated(self, room: int, options: Any, known: Any = None) -> Any:
        plan = _ext.plan(self.graph, room, options, known=known)
        if isinstance(plan, _ext.Schedule):
            is_live = options.policy == "search" and self.limits_live_bytes
            wrong: Sequence[str] = _ext.validate(
                self.graph, plan, pool_bytes=None if is_live else room, live_bytes=room
            )
            bound = plan.statistics.recompute_bound_seconds
            if bound > _seconds(plan) * (1 + ROUNDING):
                wrong = [*wrong, f"recomputes less than its bound of {bound}"]
            self.check("valid", not wrong, 0.0, f"{room}, {options}: {wrong[:1]}")
        return plan


def _seconds(plan: Any) -> float:
    """That a plan recomputes; infinite where there is none."""
    if not isinstance(plan, _ext.Schedule):
        return np.inf
    return plan.statistics.recompute_seconds
