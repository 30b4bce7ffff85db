"""Order feedback: where XLA left a plan's order, and so kept more alive than planned.

Between two fences XLA runs operations in an order of its own. XLA:CPU's is a queue: what
has all its operands comes next, whatever it makes, so that all gathers of a graph network
or all random bits of a step are made before the first of them is read. The executable of a
plan that missed shows which operations ran before others that the plan has earlier. Fences
between these, *order fences*, keep the same plan to its order; what they cost is known of
the executable with them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.decoded import AnySchedule, executions
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.search.candidates import LEAST_STEP, Candidate
from coop_jax.search.live_bytes_feedback import executions_by_instruction
from coop_jax.search.replayed_order import ReplayedOrder
from coop_jax.xla.buffer_assignment import published_module, temporary_addresses
from coop_jax.xla.liveness import live_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class OrderFences:
    """Order fences of a plan.

    Attributes:
        before: numbers of the executions that they stand before.
        saved_bytes: by how many bytes less are expected to be alive at most.
    """

    before: frozenset[int] = frozenset()
    saved_bytes: int = 0


def order_fences(
    graph: StepGraph, schedule: AnySchedule, compiled: Any, *, spares_fences: bool
) -> OrderFences:
    """The order fences that a plan needs.

    Wherever noticeably more bytes are alive than at most planned, a fence may stand before
    every execution from the first one that is still to come up to the last one that has
    begun, apart from the first. If these leave the plan's bytes (`search.replayed_order`),
    a few of them that do. If they leave more, all: what XLA has made of the plan
    beside its values is mostly parted by them, too.

    Arguments:
        graph: the graph that the schedule was planned on.
        schedule: the plan's schedule.
        compiled: the executable of the rewritten program.
        spares_fences: False: all of them, for as few bytes as can be.

    Returns:
        No fences where they are not expected to help, and where XLA does not publish its
        schedule.
    """
    module = published_module(compiled)
    if module is None or not module.sequences.get(module.entry):
        return OrderFences()
    planned = lifetimes(graph, schedule).live_bytes(graph.in_pool_bytes)
    limit = _noticeably_more(int(planned.max(initial=0)))
    places = temporary_addresses(compiled, module)
    actual = live_bytes(module, places)
    # The scope of another plan's executable may come from the compilation cache.
    numbers = [
        -1 if number is None or number >= len(planned) else number
        for number in executions_by_instruction(module)
    ]
    before: set[int] = set()
    for first, last in _out_of_order(numbers, (actual > limit).tolist()):
        before.update(range(first + 1, last + 1))
    before.intersection_update(numbers)
    if not before:
        return OrderFences()
    runs = executions(graph, schedule)
    replayed = ReplayedOrder(graph, runs, module, numbers, places)
    most = replayed.most_bytes(before)
    if _noticeably_more(most) > actual.max():
        return OrderFences()
    fences = frozenset(before)
    if spares_fences and most <= limit:
        fences = replayed.without_needless(fences, _noticeably_more(most))
    return OrderFences(fences, int(actual.max()) - most)


def same_fences(
    graph: StepGraph, schedule: AnySchedule, known: Iterable[Candidate]
) -> frozenset[int]:
    """Where the order fences of other plans stand in a plan: before the same executions of
    the same equations. What XLA runs too early is mostly the same in the next plan."""
    fences: set[tuple[int, int]] = set()
    for candidate in known:
        if candidate.ordered_before:
            numbered = _numbered(candidate.graph, candidate.schedule)
            fences.update(numbered[number] for number in candidate.ordered_before)
    if not fences:
        return frozenset()
    numbered = _numbered(graph, schedule)
    return frozenset(k for k, name in enumerate(numbered) if k and name in fences)


def _numbered(graph: StepGraph, schedule: AnySchedule) -> list[tuple[int, int]]:
    """The equation that names every execution, and how often it ran before."""
    counts: Counter[int] = Counter()
    found = []
    for execution in executions(graph, schedule):
        anchor = graph.operations[execution.operation].anchor
        found.append((anchor, counts[anchor]))
        counts[anchor] += 1
    return found


def _noticeably_more(num_bytes: int) -> int:
    return num_bytes + num_bytes // LEAST_STEP


def _out_of_order(
    numbers: Sequence[int], is_over: Sequence[bool]
) -> Iterator[tuple[int, int]]:
    """Where too much is alive: the first execution that is not done and the last one that
    has begun, if the plan has them in the other order.

    Arguments:
        numbers: the execution of every instruction, -1 where there is none.
        is_over: whether too much is alive at it.
    """
    to_come: list[int] = []  # The first execution behind every instruction.
    least = max(numbers, default=0) + 1
    for number in reversed(numbers):
        to_come.append(least)
        if number >= 0:
            least = min(least, number)
    begun = -1
    for number, over, first in zip(numbers, is_over, reversed(to_come), strict=True):
        begun = max(begun, number)
        if over and first < begun:
            yield first, begun
