"""Other orders: a plan that misses its budget, compiled again so that XLA keeps its order.

XLA may keep more alive than a plan does because it runs operations earlier than the plan.
Either XLA has another order, for memory, or order fences keep it to that of the plan
(`search.order_feedback`), which tear apart what fuses.
"""

from __future__ import annotations

import math

from coop_jax.search.candidates import LEAST_STEP, Measured, least
from coop_jax.search.order_feedback import OrderFences, order_fences
from coop_jax.search.problem import Problem


def in_order(
    problem: Problem,
    measured: Measured,
    *,
    spares_fences: bool = True,
    most_bytes: float = math.inf,
) -> Measured:
    """A compiled plan, or the same with order fences, where XLA left the plan's order while
    it kept more alive than planned, and if that needs fewer bytes.

    Arguments:
        problem: the plan's.
        measured: the plan.
        spares_fences: see `order_feedback.order_fences`.
        most_bytes: bytes that it is expected to keep within a hundredth with these fences,
            or else is not compiled with them.
    """
    candidate = measured.candidate
    fences = _fences_of(problem, measured, spares_fences=spares_fences)
    before = fences.before | candidate.ordered_before
    expected = measured.total_bytes - fences.saved_bytes
    is_hopeless = expected > most_bytes * (1 + 1 / LEAST_STEP)
    if before == candidate.ordered_before or is_hopeless:
        return measured
    ordered = problem.compile_plan(
        *(candidate.graph, candidate.schedule),
        is_guarded=candidate.is_guarded,
        ordered_before=before,
        is_for_memory=candidate.is_for_memory,
    )
    return min(measured, ordered, key=least)


def for_memory(problem: Problem, measured: Measured) -> Measured | None:
    """A compiled plan once more, ordered for memory by XLA; None where XLA kept the plan's
    order, or no more alive than planned, or has no other order."""
    candidate = measured.candidate
    if not problem.options_for_memory or candidate.is_for_memory:
        return None
    if not _fences_of(problem, measured, spares_fences=True).before:
        return None
    return problem.compile_plan(
        *(candidate.graph, candidate.schedule),
        is_guarded=candidate.is_guarded,
        ordered_before=candidate.ordered_before,
        is_for_memory=True,
    )


def _fences_of(problem: Problem, measured: Measured, *, spares_fences: bool) -> OrderFences:
    """The order fences of a compiled plan; none where they are not known to help."""
    if measured.compiled is None or problem.placement.has_arena:
        return OrderFences()
    key = measured, spares_fences
    if key not in problem.order_fences:
        candidate = measured.candidate
        problem.order_fences[key] = order_fences(
            *(candidate.graph, candidate.schedule),
            problem.read(measured),
            spares_fences=spares_fences,
        )
    return problem.order_fences[key]
