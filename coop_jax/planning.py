"""Planning: graphs without JAX, planned, validated and measured.

A trace recorded anywhere can be planned, from its operations, the seconds of each, and the
tensors that they read and made.

    graph, names = named_graph(
        {"x": {"bytes": 4 << 20, "pinned": True}, "y": {"bytes": 8 << 20}, ...},
        [{"seconds": 1e-3, "inputs": ["x"], "outputs": ["y"]}, ...],
    )
    schedule = plan_graph(graph, pool_bytes=64 << 20, policy="coop")
    print(metrics(schedule, reference_bytes=unconstrained(graph).statistics.peak_bytes))

`Graph` is the same from plain arrays; its docstring describes them.

Planners are those of `remat_train_step`, and `"search"` is the default. But here the plan
places the tensors, at addresses in one pool: `PlanOptions` has the defaults for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coop_jax import _ext
from coop_jax.base.options import DEFAULT_PLANNER
from coop_jax.base.options import PlanOptions as PlanOptions
from coop_jax.base.strict_values import shown, whole_bytes
from coop_jax.plan.costs import Metrics as Metrics
from coop_jax.plan.costs import check_schedule
from coop_jax.plan.costs import metrics as metrics
from coop_jax.plan.named_graph import Graph as Graph
from coop_jax.plan.named_graph import named_graph as named_graph
from coop_jax.plan.packed_blocks import Block as Block
from coop_jax.plan.packed_blocks import Packed as Packed
from coop_jax.plan.packed_blocks import pack_blocks
from coop_jax.plan.planner import PLANNERS
from coop_jax.plan.validated import validated

MinimumPool = _ext.MinimumPool
PlanFailure = _ext.PlanFailure
Schedule = _ext.Schedule
Statistics = _ext.Statistics

POLICIES = PLANNERS


class InfeasiblePoolError(ValueError):
    """No schedule, or no packing, was found in a pool.

    Attributes:
        failure: the block that the planner could not place, and the operation that asked
            for it; None where even a pool with room for everything fails, and of `pack`.
    """

    def __init__(self, message: str, failure: PlanFailure | None) -> None:
        self.failure = failure
        super().__init__(message)


def plan_graph(
    graph: Graph,
    pool_bytes: int,
    policy: str | PlanOptions = DEFAULT_PLANNER,
    **options: Any,
) -> Schedule:
    """Plan a graph: a validated schedule in a pool of `pool_bytes`.

    The plan places every tensor, at addresses inside the pool. (`remat_train_step` leaves
    that to XLA, and its plans limit the bytes alive instead: `limits_live_bytes=True` does
    so here.)

    Arguments:
        graph: the graph to plan.
        pool_bytes: bytes of the one contiguous pool that all its tensors share.
        policy: `"search"`, the default, `"coop"`, `"dtr"`, `"dte"`, `"lookahead"` (exact
            next uses in place of staleness), or a complete `PlanOptions`. Fields that are
            not given are those of a pool with addresses, as `PlanOptions` lists them.
        options: further arguments of `PlanOptions`, with a policy given by name.

    Raises:
        InfeasiblePoolError: the policy found no schedule; `failure` says where it stopped.
        TypeError, ValueError: an argument is of another type or out of range.
    """
    chosen = _options("plan_graph", policy, options)
    what = "`planning.plan_graph(pool_bytes=...)`"
    pool_bytes = whole_bytes(what, pool_bytes, "Round it, as with `int(...)`.")
    if pool_bytes < 0:
        raise ValueError(
            f"{what} must not be negative. Got {pool_bytes}. `minimum_pool` finds the "
            "smallest pool that does."
        )
    result = _ext.plan(_checked("plan_graph", graph), pool_bytes, chosen)
    if isinstance(result, Schedule):
        return _as_promised(graph, result, pool_bytes, chosen)
    error = _infeasible(result, pool_bytes, chosen)
    raise error


def plan_pools(
    graph: Graph,
    pools: Iterable[int],
    policy: str | PlanOptions = DEFAULT_PLANNER,
    **options: Any,
) -> list[Schedule | None]:
    """Plan a graph in several pools: what recomputation costs for ever more bytes.

    The pools are planned from the smallest on, and the search goes on from what it found
    for less: with `policy="search"` a larger pool never recomputes more than a smaller
    one, and has a plan where that has one. No plan is worse than that of `plan_graph` by
    more than the search's tolerance, 0.2 % of the program's seconds.

    Arguments:
        graph: the graph to plan.
        pools: bytes of each pool, in any order.
        policy, options: as for `plan_graph`.

    Returns:
        Validated schedules in the order of `pools`; None where none was found.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range.
    """
    chosen = _options("plan_pools", policy, options)
    graph = _checked("plan_pools", graph)
    what = "`planning.plan_pools(pools=...)`"
    todo = "Give bytes as ints."
    sizes = [whole_bytes(what, pool, todo, least=0) for pool in pools]
    found: dict[int, Schedule | None] = {}
    known = None
    for size in sorted(set(sizes)):
        result = _ext.plan(graph, size, chosen, known=known)
        if isinstance(result, Schedule):
            known = _as_promised(graph, result, size, chosen)
            found[size] = known
        else:
            found[size] = None
    return [found[size] for size in sizes]


def _infeasible(
    result: PlanFailure, pool_bytes: int, chosen: PlanOptions
) -> InfeasiblePoolError:
    if result.reason == "overhead_limit":
        plan = f"operation {result.op} would start later"
        if result.op < 0:
            plan = "every plan that was found takes longer"
        why = (
            f"{plan} than {chosen.overhead_limit:g} times the program's seconds "
            "(`overhead_limit`)"
        )
    elif result.reason == "effort":
        why = (
            "no plan was found, and none ruled out, with this `search_effort` and "
            "`seconds`; raise them"
        )
    else:
        why = (
            f"operation {result.op} asks for {result.requested_bytes} bytes where "
            f"{result.free_bytes} are free, {result.largest_free_bytes} of them in one "
            f"piece, and {result.pinned_bytes} cannot be evicted"
        )
        if result.op < 0:
            why = why.replace("operation -1 asks", "placing the graph's inputs asks")
    return InfeasiblePoolError(
        f"`planning.plan_graph(pool_bytes=...)` is too small for policy "
        f"{chosen.policy!r}: {why}. Got {pool_bytes}. Ask "
        "`planning.minimum_pool` for the smallest pool this policy can plan.",
        result,
    )


def unconstrained(
    graph: Graph, policy: str | PlanOptions = DEFAULT_PLANNER, **options: Any
) -> Schedule:
    """The schedule without evictions, in a pool as large as it needs.

    Arguments:
        graph: the graph to plan.
        policy, options: as for `plan_graph`.

    Returns:
        A validated schedule; `statistics.peak_bytes` is the pool that it needs.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range.
    """
    chosen = _options("unconstrained", policy, options)
    return validated(graph, _ext.unconstrained(_checked("unconstrained", graph), chosen))


def minimum_pool(
    graph: Graph,
    policy: str | PlanOptions = DEFAULT_PLANNER,
    *,
    tolerance_bytes: int | None = None,
    **options: Any,
) -> MinimumPool:
    """The smallest pool the policy can plan, found by bisection, with its schedule.

    Feasibility need not be monotone in the pool's size, so a smaller one may exist.

    Arguments:
        graph: the graph to plan.
        policy, options: as for `plan_graph`. Set an `overhead_limit`: near the bottom,
            schedules exist that recompute without end.
        tolerance_bytes: the interval at which the bisection may stop; 0.5 % of the pool by
            default.

    Returns:
        The pool's size (`capacity`, bytes), its schedule, and the operation that prevents
        less (`blocking_operation`).

    Raises:
        InfeasiblePoolError: not even a pool with room for everything can be planned within
            `overhead_limit`.
        TypeError, ValueError: an argument is of another type or out of range.
    """
    chosen = _options("minimum_pool", policy, options)
    if tolerance_bytes is not None:
        what = "`planning.minimum_pool(tolerance_bytes=...)`"
        todo = "Give bytes as an int, or None."
        tolerance_bytes = whole_bytes(what, tolerance_bytes, todo, least=0)
    found = _ext.minimum_pool(_checked("minimum_pool", graph), chosen, tolerance_bytes)
    if found is None:
        raise InfeasiblePoolError(
            "`planning.minimum_pool(...)` found no pool at all for policy "
            f"{chosen.policy!r} with `overhead_limit` {chosen.overhead_limit}: even a "
            "pool with room for everything fails. Raise `overhead_limit`.",
            None,
        )
    _as_promised(graph, found.schedule, found.capacity, chosen)
    return found


def pack(
    blocks: Iterable[Block | Sequence[int]],
    capacity: int | None = None,
    alignment: int = 1,
    seconds: float = 10.0,
) -> Packed:
    """Offsets for blocks with known lifetimes, for the least peak that is found.

    Two blocks that live at a common step never share bytes. That, the alignment, fixed
    offsets and the bound are checked apart from the search.

    Arguments:
        blocks: `Block`s, or tuples (first, last, bytes) of the steps at which a block
            lives, both included, and its size.
        capacity: bytes that are good enough; None: the search goes on to the lower bound.
        alignment: of every offset, a power of two, in bytes; sizes are rounded up to it.
        seconds: how long to search at most.

    Raises:
        InfeasiblePoolError: no packing within `capacity` was found.
        TypeError, ValueError: an argument is of another type or out of range.
    """
    packed = pack_blocks(blocks, capacity, alignment, seconds)
    if capacity is not None and packed.peak_bytes > capacity:
        raise InfeasiblePoolError(
            "`planning.pack(capacity=...)` must be enough for a packing that is found in "
            f"`seconds` ({seconds:g}). Got {capacity} bytes: the best packing needs "
            f"{packed.peak_bytes}, and none needs less than {packed.lower_bound_bytes}. "
            "Raise one of the two.",
            None,
        )
    return packed


def lower_bound(graph: Graph, alignment: int = 64) -> tuple[int, int]:
    """Bytes that every schedule needs, and the operation that needs them.

    The bound is the pinned bytes plus the operands and results of one operation.

    Arguments:
        graph: the graph to plan.
        alignment: of every block in the pool, in bytes; a power of two.

    Returns:
        (bytes, operation). The operation is -1 where the graph's inputs together need most,
        and the number of operations where its outputs do.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range.
    """
    return _ext.lower_bound(_checked("lower_bound", graph), alignment)


def validate(
    graph: Graph,
    schedule: Schedule,
    *,
    pool_bytes: int | None = None,
    live_bytes: int | None = None,
) -> list[str]:
    """Everything wrong with a schedule, by an independent replay; empty if it is valid.

    Its claims are checked as well: the place of every tensor, `peak_bytes`,
    `max_live_bytes` and, if a planner made it, its seconds and counts.

    Arguments:
        graph: the graph that the schedule is of.
        schedule: from a planner or from arrays.
        pool_bytes: limit of the highest end address, in bytes; None: no limit.
        live_bytes: limit of the bytes in use while an operation runs; None: no limit.

    Returns:
        A sentence for every violation, with the number of the step.

    Raises:
        TypeError: an argument is of another type.
    """
    check_schedule("validate", schedule)
    return _ext.validate(
        _checked("validate", graph), schedule, pool_bytes=pool_bytes, live_bytes=live_bytes
    )


def _options(
    caller: str, policy: str | PlanOptions, options: Mapping[str, Any]
) -> PlanOptions:
    """The options of a planner given by name or by `PlanOptions`, for a caller's errors."""
    if isinstance(policy, _ext.PlanOptions):
        if options:
            raise ValueError(
                f"`planning.{caller}(policy=PlanOptions(...))` must not come with further "
                f"options. Got {next(iter(options))!r} as well. Put it into "
                "`PlanOptions`."
            )
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(
            f"`planning.{caller}(policy=...)` must be one of {', '.join(POLICIES)} or "
            f"a `planning.PlanOptions`. Got {shown(policy)}. Choose one of them."
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


def _as_promised(
    graph: Graph, schedule: Schedule, pool_bytes: int, options: _ext.PlanOptions
) -> Schedule:
    places_all = options.policy != "search" or not options.limits_live_bytes
    limit = pool_bytes if places_all else None
    return validated(graph, schedule, pool_bytes=limit, live_bytes=pool_bytes)
