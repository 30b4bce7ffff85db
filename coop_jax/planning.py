"""Planning: graphs without JAX, planned, validated and measured.

A trace recorded anywhere can be planned: say which operations ran, how long each took,
and which tensors they read and made.

    graph, names = named_graph(
        {"x": {"bytes": 4 << 20, "pinned": True}, "y": {"bytes": 8 << 20}, ...},
        [{"seconds": 1e-3, "inputs": ["x"], "outputs": ["y"]}, ...],
    )
    schedule = plan_graph(graph, pool_bytes=64 << 20, policy="coop")
    print(metrics(schedule, reference_bytes=unconstrained(graph).statistics.peak_bytes))

`Graph` is the same from plain arrays; its docstring describes them.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coop_jax import _ext

Graph = _ext.Graph
MinimumPool = _ext.MinimumPool
PlanFailure = _ext.PlanFailure
PlanOptions = _ext.PlanOptions
Schedule = _ext.Schedule
Statistics = _ext.Statistics

POLICIES = ("search", "lookahead", "coop", "dtr", "dte")

_TENSOR_KEYS = ("bytes", "pinned", "external", "output")
_OPERATION_KEYS = (
    "seconds",
    "inputs",
    "outputs",
    "workspace_bytes",
    "recomputable",
    "in_place",
    "overwrites",
    "releases",
)


class InfeasiblePoolError(ValueError):
    """No schedule was found in a pool.

    Attributes:
        failure: what the planner could not place, and when.
    """

    def __init__(self, message: str, failure: PlanFailure | None) -> None:
        self.failure = failure
        super().__init__(message)


@dataclasses.dataclass(frozen=True)
class Metrics:
    """What a schedule costs, in the terms of the Coop paper's experiment.

    Attributes:
        pool_bytes: the budget: the pool's size.
        memory_ratio: the budget over `reference_bytes`, the budget at which nothing needs
            to be evicted (not over the peak that was used).
        compute_overhead: seconds of every operation run, recomputations included, over
            the seconds of every operation once.
        forced_evictions: tensors evicted to make room.
        eager_evictions: tensors freed because the program let go of them, though they
            can be recomputed.
        recomputations: operations run again.
        searches: allocations for which the free memory did not do.
        search_seconds: searching and evicting in all of them; varies from run to run.
        pieces_examined: evictable tensors whose cost was computed, in all searches: the
            latency without the machine.
        fragmentation: mean over the searches of free bytes over pool bytes, right after
            the room was found and before it is taken. The definition of the authors'
            merged code; never below the share of the block itself.
        fragmentation_block_used: the same with that block counted as used: what is
            left lying about. The definition of the authors' first code.
        peak_bytes: the highest end address in use.
        max_live_bytes: the most bytes in use at once.
    """

    pool_bytes: int
    memory_ratio: float
    compute_overhead: float
    forced_evictions: int
    eager_evictions: int
    recomputations: int
    searches: int
    search_seconds: float
    pieces_examined: int
    fragmentation: float
    fragmentation_block_used: float
    peak_bytes: int
    max_live_bytes: int


def metrics(schedule: Schedule, reference_bytes: int) -> Metrics:
    """The metrics of a schedule that a planner made.

    Arguments:
        schedule: from `plan_graph`, `minimum_pool` or `unconstrained`.
        reference_bytes: the pool that counts as memory ratio 1: the peak of
            `unconstrained`, the same for all methods that are compared.
    """
    if reference_bytes <= 0:
        raise ValueError(
            "`planning.metrics(reference_bytes=...)` must be positive. Got "
            f"{reference_bytes}. Pass `unconstrained(graph).statistics.peak_bytes`."
        )
    statistics = schedule.statistics
    return Metrics(
        pool_bytes=schedule.capacity,
        memory_ratio=schedule.capacity / reference_bytes,
        compute_overhead=statistics.compute_overhead,
        forced_evictions=statistics.forced_evictions,
        eager_evictions=statistics.eager_evictions,
        recomputations=statistics.recomputations,
        searches=len(schedule.events),
        search_seconds=statistics.search_seconds,
        pieces_examined=statistics.pieces_examined,
        fragmentation=statistics.fragmentation_rate,
        fragmentation_block_used=statistics.fragmentation_rate_block_used,
        peak_bytes=statistics.peak_bytes,
        max_live_bytes=statistics.max_live_bytes,
    )


def plan_graph(
    graph: Graph, pool_bytes: int, policy: str | PlanOptions = "coop", **options: Any
) -> Schedule:
    """A validated schedule of `graph` in a pool of `pool_bytes`.

    Arguments:
        graph: what to plan.
        pool_bytes: bytes of the one contiguous pool that all its tensors share.
        policy: `"search"`, `"coop"`, `"dtr"`, `"dte"`, `"lookahead"` (exact next uses in
            place of staleness), or `PlanOptions` as a whole.
        options: further arguments of `PlanOptions`, with a policy given by name.

    Raises:
        InfeasiblePoolError: the policy found no schedule; `failure` says where it stopped.
    """
    chosen = _options("plan_graph", policy, options)
    if isinstance(pool_bytes, bool) or not hasattr(pool_bytes, "__index__"):
        raise TypeError(
            "`planning.plan_graph(pool_bytes=...)` must be a whole number of bytes. Got "
            f"{pool_bytes!r}. Round it, for example with `int(...)`."
        )
    pool_bytes = operator.index(pool_bytes)
    if pool_bytes < 0:
        raise ValueError(
            "`planning.plan_graph(pool_bytes=...)` must not be negative. Got "
            f"{pool_bytes}. `minimum_pool` finds the smallest pool that does."
        )
    result = _ext.plan(_checked("plan_graph", graph), pool_bytes, chosen)
    if isinstance(result, Schedule):
        return _validated(graph, result)
    if result.reason == "overhead_limit":
        why = (
            f"operation {result.op} would start later than {chosen.overhead_limit:g} "
            "times the program's seconds (`overhead_limit`)"
        )
    else:
        why = (
            f"operation {result.op} asks for {result.requested_bytes} bytes where "
            f"{result.free_bytes} are free, {result.largest_free_bytes} of them in one "
            f"piece, and {result.pinned_bytes} cannot be evicted"
        )
        if result.op < 0:
            why = why.replace("operation -1 asks", "placing the graph's inputs asks")
    raise InfeasiblePoolError(
        f"`planning.plan_graph(pool_bytes=...)` is too small for policy "
        f"{chosen.policy!r}: {why}. Got {pool_bytes}. Ask "
        "`planning.minimum_pool` for the smallest pool this policy can plan.",
        result,
    )


def unconstrained(
    graph: Graph, policy: str | PlanOptions = "coop", **options: Any
) -> Schedule:
    """The schedule without evictions, in a pool as large as it needs."""
    chosen = _options("unconstrained", policy, options)
    return _validated(graph, _ext.unconstrained(_checked("unconstrained", graph), chosen))


def minimum_pool(
    graph: Graph,
    policy: str | PlanOptions = "coop",
    *,
    tolerance_bytes: int | None = None,
    **options: Any,
) -> MinimumPool:
    """The smallest pool the policy can plan, found by bisection, with its schedule.

    Feasibility need not be monotone in the pool's size, so a smaller one may exist.

    Arguments:
        graph: what to plan.
        policy, options: as for `plan_graph`. Set an `overhead_limit`: near the bottom,
            schedules exist that recompute for ever.
        tolerance_bytes: where the bisection may stop; 0.5 % by default.
    """
    chosen = _options("minimum_pool", policy, options)
    found = _ext.minimum_pool(_checked("minimum_pool", graph), chosen, tolerance_bytes)
    if found is None:
        raise InfeasiblePoolError(
            "`planning.minimum_pool(...)` found no pool at all for policy "
            f"{chosen.policy!r} with `overhead_limit` {chosen.overhead_limit}: even a "
            "pool with room for everything fails. Raise `overhead_limit`.",
            None,
        )
    _validated(graph, found.schedule)
    return found


def lower_bound(graph: Graph, alignment: int = 64) -> tuple[int, int]:
    """(bytes, operation): no schedule needs less, because of that operation.

    What is pinned plus the operands and results of the hungriest operation; -1: the
    graph's inputs together, the number of operations: its outputs together.
    """
    PlanOptions(alignment=alignment)  # checks it
    return _ext.lower_bound(_checked("lower_bound", graph), alignment)


def validate(graph: Graph, schedule: Schedule) -> list[str]:
    """Everything wrong with a schedule, by an independent replay; empty if it is valid."""
    if not isinstance(schedule, Schedule):
        raise TypeError(
            "`planning.validate(schedule=...)` must be a `planning.Schedule`. Got "
            f"{type(schedule).__name__}. Make one with `plan_graph` or from arrays."
        )
    return _ext.validate(_checked("validate", graph), schedule)


def named_graph(
    tensors: Mapping[str, Mapping[str, Any]], operations: Sequence[Mapping[str, Any]]
) -> tuple[Graph, tuple[str, ...]]:
    """A `Graph` from dictionaries, and the tensors' names in the graph's order.

    Arguments:
        tensors: by name `{"bytes": int}` and, where they apply, `"pinned"`, `"external"`
            and `"output"`: True.
        operations: in execution order, `{"seconds": float, "inputs": [names], "outputs":
            [names]}` and, where they apply, `"workspace_bytes": int`,
            `"recomputable": False`, `"in_place"` and `"overwrites"`: [(old, new) names],
            and `"releases"`: [names whose handles go afterwards]. With releases anywhere,
            a tensor that nobody releases is held to the end; without any, each goes
            after its last use.
    """
    names = tuple(tensors)
    index_of = {name: i for i, name in enumerate(names)}
    for name, tensor in tensors.items():
        _check_keys(f"tensor {name!r}", tensor, _TENSOR_KEYS, "bytes")
    for i, operation in enumerate(operations):
        _check_keys(f"operation {i}", operation, _OPERATION_KEYS, "seconds")

    def indices(i: int, wanted: Iterable[str]) -> list[int]:
        wanted = list(wanted)
        for name in wanted:
            if name not in index_of:
                raise ValueError(
                    "`planning.named_graph(operations=...)` must name tensors of "
                    f"`tensors`. Got {name!r} in operation {i}. Add it to `tensors`."
                )
        return [index_of[name] for name in wanted]

    def rows(key: str) -> list[tuple[int, ...]]:
        return [
            (i, *indices(i, pair))
            for i, operation in enumerate(operations)
            for pair in operation.get(key, ())
        ]

    releases = [
        (i, t)
        for i, operation in enumerate(operations)
        for t in indices(i, operation.get("releases", ()))
    ]
    has_releases = any("releases" in operation for operation in operations)
    reads = [indices(i, op.get("inputs", ())) for i, op in enumerate(operations)]
    makes = [indices(i, op.get("outputs", ())) for i, op in enumerate(operations)]

    def column(items: Iterable[Any], key: str, default: Any, dtype: type) -> np.ndarray:
        return np.array([item.get(key, default) for item in items], dtype)

    graph = Graph(
        op_seconds=column(operations, "seconds", 0, np.float64),
        op_workspace_bytes=column(operations, "workspace_bytes", 0, np.int64),
        op_recomputable=column(operations, "recomputable", True, np.bool_),
        op_inputs_ptr=_pointers(reads),
        op_inputs=_flat(reads),
        op_outputs_ptr=_pointers(makes),
        op_outputs=_flat(makes),
        tensor_bytes=column(tensors.values(), "bytes", 0, np.int64),
        tensor_external=column(tensors.values(), "external", False, np.bool_),
        tensor_pinned=column(tensors.values(), "pinned", False, np.bool_),
        tensor_output=column(tensors.values(), "output", False, np.bool_),
        in_place=np.array(rows("in_place"), np.int64).reshape(-1, 3),
        overwrites=np.array(rows("overwrites"), np.int64).reshape(-1, 3),
        releases=np.array(releases, np.int64).reshape(-1, 2) if has_releases else None,
    )
    return graph, names


def _check_keys(
    what: str, given: Mapping[str, Any], known: tuple[str, ...], required: str
) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(
            f"`planning.named_graph(...)`: the keys of {what} must be among "
            f"{', '.join(known)}. Got {unknown[0]!r}. Correct or remove it."
        )
    if required not in given:
        raise ValueError(
            f"`planning.named_graph(...)`: {what} must have {required!r}. Got the keys "
            f"{sorted(given)}. Add it."
        )


def _pointers(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def _flat(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array(list(itertools.chain.from_iterable(rows)), np.int64)


def _options(
    caller: str, policy: str | PlanOptions, options: Mapping[str, Any]
) -> PlanOptions:
    if isinstance(policy, PlanOptions):
        if options:
            raise ValueError(
                f"`planning.{caller}(policy=PlanOptions(...))` must not come with further "
                f"options. Got {next(iter(options))!r} as well. Put it into "
                "`PlanOptions`."
            )
        return policy
    if policy not in POLICIES:
        raise ValueError(
            f"`planning.{caller}(policy=...)` must be one of {', '.join(POLICIES)} or "
            f"a `planning.PlanOptions`. Got {policy!r}. Choose one of them."
        )
    return PlanOptions(policy=policy, **options)


def _checked(caller: str, graph: Any) -> Graph:
    if isinstance(graph, Graph):
        return graph
    raise TypeError(
        f"`planning.{caller}(graph=...)` must be a `planning.Graph`. Got "
        f"{type(graph).__name__}. Make one with `Graph(...)`, `named_graph` or "
        "`dtr_log.read_dtr_log`."
    )


def _validated(graph: Graph, schedule: Schedule) -> Schedule:
    violations = _ext.validate(graph, schedule)
    if violations:
        raise AssertionError(
            "This is a bug in coop_jax, please report it: a plan failed validation: "
            + "; ".join(violations[:3])
        )
    return schedule
