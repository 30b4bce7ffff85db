"""The experiment: what is compared, and one plan of it as a row of results.

All methods of a network get the same graph, the same seconds and the same pool; they
differ in nothing but the `PlanOptions` below.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import time

from paper.networks import DONATED, NETWORKS, Scale

from coop_jax import _ext, planning, targets
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.trace.program import Program

ALIGNMENT_BYTES = 512  # the authors' allocator
OVERHEAD_LIMIT = 10.0  # a plan that takes longer counts as none
TARGET = "a100"
# Plans are deterministic, their search time is not: the best of this many counts.
TIMED_RUNS = 3

METHODS: dict[str, dict[str, object]] = {
    "dtr": {"policy": "dtr"},
    "dte": {"policy": "dte"},
    "coop": {"policy": "coop"},
    "coop_no_window": {"policy": "coop", "sliding_window": False},
    "coop_no_partition": {"policy": "coop", "partition": False},
    "coop_no_in_place": {"policy": "coop", "recomputable_in_place": False},
}
COMPARED = ("dtr", "dte", "coop")
ABLATIONS = ("coop_no_window", "coop_no_partition", "coop_no_in_place")


class Model(enum.Enum):
    """Where a step's arguments and results live."""

    PAPER = "paper"  # pinned in the pool, like the parameters of an eager framework
    OURS = "ours"  # in XLA's own buffers, outside of the pool


@dataclasses.dataclass(frozen=True)
class Case:
    """A network in a model: the graph, and what does not depend on the method.

    Attributes:
        network, model, scale: which.
        num_operations, num_tensors: of the graph.
        graph_seconds: to trace the step and build the graph.
        reference_bytes: memory ratio 1: in a pool of this size none of the compared
            methods has to evict.
        lower_bound_bytes: no method can do with less.
    """

    network: str
    model: str
    scale: str
    num_operations: int
    num_tensors: int
    graph_seconds: float
    reference_bytes: int
    lower_bound_bytes: int


@dataclasses.dataclass(frozen=True)
class Row:
    """One plan of the experiment; `None`: there is no plan to take it from.

    Attributes:
        kind: "grid" for a budget of the grid, "minimum" for the smallest that bisection
            found for this method.
        ratio: memory ratio, `pool_bytes` over the case's `reference_bytes`.
        outcome: "ok", or why there is no plan: "out_of_memory", "overhead_limit".
        plan_seconds: for the whole plan, not only its searches.
        others: as in `coop_jax.planning.Metrics`.
    """

    network: str
    model: str
    method: str
    kind: str
    ratio: float
    pool_bytes: int
    outcome: str
    plan_seconds: float
    compute_overhead: float | None = None
    forced_evictions: int | None = None
    eager_evictions: int | None = None
    recomputations: int | None = None
    searches: int | None = None
    search_seconds: float | None = None
    pieces_examined: int | None = None
    fragmentation: float | None = None
    fragmentation_block_used: float | None = None
    peak_bytes: int | None = None
    max_live_bytes: int | None = None


def options(method: str) -> _ext.PlanOptions:
    return _ext.PlanOptions(
        alignment=ALIGNMENT_BYTES, overhead_limit=OVERHEAD_LIMIT, **METHODS[method]
    )


@functools.lru_cache(maxsize=1)  # both models of a network share it
def _program(network: str, scale: Scale) -> Program:
    step = NETWORKS[network](scale)
    traced = TracedStep.trace(
        step.step,
        {"donate_argnums": DONATED},
        step.args,
        {},
    )
    return traced.program


def graph_of(network: str, model: Model, scale: Scale = Scale.PAPER) -> StepGraph:
    """The graph of a training step, from shapes: nothing is compiled."""
    program = _program(network, scale)
    return build_graph(
        program,
        stored_values.from_rules(program),
        targets.named(TARGET),
        inputs_in_pool=model is Model.PAPER,
    )


def build_case(
    network: str, model: Model, scale: Scale = Scale.PAPER
) -> tuple[StepGraph, Case]:
    start = time.perf_counter()
    graph = graph_of(network, model, scale)
    graph_seconds = time.perf_counter() - start
    peaks = [
        planning.unconstrained(graph.core, options(method)).statistics.peak_bytes
        for method in COMPARED
    ]
    bound, _ = planning.lower_bound(graph.core, ALIGNMENT_BYTES)
    return graph, Case(
        network=network,
        model=model.value,
        scale=scale.value,
        num_operations=graph.core.num_ops,
        num_tensors=graph.core.num_tensors,
        graph_seconds=graph_seconds,
        reference_bytes=max(peaks),
        lower_bound_bytes=bound,
    )


def grid(case: Case, step: float) -> list[float]:
    """Memory ratios from 1 down to the last one above the lower bound."""
    lowest = case.lower_bound_bytes / case.reference_bytes
    count = int((1 - lowest) / step + 1e-9)
    return [round(1 - i * step, 6) for i in range(count + 1)]


def pool_bytes(case: Case, ratio: float) -> int:
    return int(case.reference_bytes * ratio) // ALIGNMENT_BYTES * ALIGNMENT_BYTES


def plan_at(graph: StepGraph, case: Case, method: str, ratio: float) -> Row:
    """The row of one budget of the grid."""
    return _row(graph, case, method, "grid", ratio, pool_bytes(case, ratio))


def plan_minimum(graph: StepGraph, case: Case, method: str) -> Row:
    """The row of the smallest pool that bisection finds."""
    smallest = planning.minimum_pool(graph.core, options(method)).capacity
    ratio = round(smallest / case.reference_bytes, 6)
    return _row(graph, case, method, "minimum", ratio, smallest)


def _row(graph, case, method, kind, ratio, capacity) -> Row:
    best, seconds = None, float("inf")
    outcome = "ok"
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        plan = _ext.plan(graph.core, capacity, options(method))
        seconds = min(seconds, time.perf_counter() - start)
        if isinstance(plan, _ext.PlanFailure):
            outcome = plan.reason
            break
        if best is None or (
            plan.statistics.search_seconds < best.statistics.search_seconds
        ):
            best = plan
    row = Row(
        network=case.network,
        model=case.model,
        method=method,
        kind=kind,
        ratio=ratio,
        pool_bytes=capacity,
        outcome=outcome,
        plan_seconds=seconds,
    )
    if best is None:
        return row
    if violations := planning.validate(graph.core, best):
        raise AssertionError(f"{row}: {violations[:3]}")
    found = dataclasses.asdict(planning.metrics(best, case.reference_bytes))
    return dataclasses.replace(
        row, **{key: found[key] for key in found if key in _MEASURED}
    )


_MEASURED = {field.name for field in dataclasses.fields(Row) if field.default is None}
