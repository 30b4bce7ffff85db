"""Pipeline: from a traced step to a compiled step under a budget."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from coop_jax import _ext
from coop_jax.arena.executable import StepWithArena
from coop_jax.arena.layout import NO_ARENA, ArenaPlan
from coop_jax.arena.stats import ArenaStats, planned_stats, recorded_stats
from coop_jax.base import _compat
from coop_jax.base.budget import format_bytes, resolve_budget
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph.step_graph import StepGraph, build_graph
from coop_jax.graph.stored_values import StoredValues, from_rules, tag
from coop_jax.plan.planner import PlanOptions, needed_bytes, planner_options, unconstrained
from coop_jax.report import Plan, planned_plan, unmodified_plan
from coop_jax.search.candidates import MAX_COMPILATIONS, Candidate, Measured
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import ArenaPlacement, XlaPlacement
from coop_jax.targets import Target, target_of
from coop_jax.trace.costs import aval_bytes, flops
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured, compile_to_read, memory_figures

# What XLA's temporaries take beyond the buffers it lists counts as fixed up to this part.
_MOST_UNLISTED = 10
# Compilations before any plan: the step as written, and the one that says what is stored.
_OF_UNMODIFIED = 2


@dataclasses.dataclass(frozen=True)
class Placing:
    """Where planned tensors live: a name of `PLACEMENTS`, and for an arena the number of
    the books that its exchanges keep, None if they are not checked."""

    name: str = "xla"
    books: int | None = None

    def placement(
        self, traced: TracedStep, stored: StoredValues | None = None
    ) -> XlaPlacement:
        """The placement for a step, which an arena can only have on one device.

        Arguments:
            stored: what XLA stores of the step; None where nothing was compiled.
        """
        backend = traced.backend
        hints = backend.fence_hints(traced.program, stored)
        if self.name != "arena":
            return XlaPlacement(backend, hints)
        if traced.num_devices() > 1:
            raise ValueError(
                '`remat_train_step(placement="arena")` is for steps on one device. Got '
                f'arguments over {traced.num_devices()}: use `placement="xla"`, which '
                "plans what each device keeps."
            )
        device = traced.device()
        return ArenaPlacement(
            backend, hints, device.platform, target_of(device), self.books
        )


XLA_PLACES = Placing()


@dataclasses.dataclass(frozen=True, eq=False)
class FittedStep:
    """A step that keeps its budget: XLA's executable, its jit, and the plan.

    `candidate` is what was compiled, None if the step is left as it is; `books` is where
    checked exchanges keep theirs.
    """

    compiled: Any
    jitted: Any
    plan: Plan
    candidate: Candidate | None = None
    books: int | None = None

    @property
    def is_unmodified(self) -> bool:
        """The step fits as written."""
        return self.candidate is None

    def arena_stats(self) -> ArenaStats:
        """What the last call of this step did in its arena."""
        arena = self.plan.arena
        if arena is None or not arena.stays:
            return planned_stats(NO_ARENA)
        assert self.books is not None, "asked of steps that keep books"
        self.compiled.wait()
        stats = recorded_stats(arena, self.books)
        assert stats is not None, "the step was called, so its exchanges ran"
        return stats


def fit_step(
    traced: TracedStep,
    budget: int | str,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    unmodified: tuple[Any, int, Any] | None = None,
    placing: Placing = XLA_PLACES,
    caller: str = "remat_train_step",
) -> FittedStep:
    """Trace -> materialise -> graph -> plan -> rewrite -> compile -> verify.

    `unmodified` is what `compile_both` returned, for several budgets of one step;
    `caller` the function that errors name.
    """
    as_written, unmodified_bytes, tagged = unmodified or compile_both(traced)
    device = traced.device()
    budget_bytes = resolve_budget(budget, unmodified_bytes, device, caller)
    log(
        f"unmodified step: {format_bytes(unmodified_bytes)}, budget "
        f"{format_bytes(budget_bytes)}"
    )
    if as_written is not None and unmodified_bytes <= budget_bytes:
        total_flops = sum(map(flops, traced.program.eqns))
        plan = unmodified_plan(
            device, budget_bytes, unmodified_bytes, _OF_UNMODIFIED, total_flops
        )
        return FittedStep(as_written, traced.jitted, plan)
    works_bytes = None if as_written is None else unmodified_bytes
    search = _search(traced, planner, log, tagged, placing, works_bytes, caller)
    del as_written, tagged, unmodified
    found = search.run(budget_bytes)
    if isinstance(found.compiled, StepWithArena) and placing.books is not None:
        weakref.finalize(found.compiled, _ext.remove_arena_books, placing.books)
    fitted = _fitted(traced, search, found, budget_bytes, unmodified_bytes)
    return dataclasses.replace(fitted, books=placing.books)


def fit_smallest(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    unmodified: tuple[Any, int, Any],
) -> FittedStep:
    """As `fit_step`, at the smallest budget that works."""
    _, unmodified_bytes, tagged = unmodified
    search = _search(traced, planner, log, tagged, XLA_PLACES)
    found = search.smallest(MAX_COMPILATIONS)
    return _fitted(traced, search, found, found.total_bytes, unmodified_bytes)


def _search(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    tagged: Any,
    placing: Placing,
    works_bytes: int | None = None,
    caller: str = "remat_train_step",
) -> BudgetSearch:
    """The search for a step under a budget; `tagged` is None if XLA refused it, and
    `works_bytes`, what the step as written needs, if that is."""
    device = traced.device()
    target = target_of(device)
    if tagged is None:
        materialization = from_rules(traced.program)
        fixed_bytes = least_fixed_bytes = predicted_fixed_bytes(traced.program)
    else:
        materialization = traced.backend.stored_values(traced.program, tagged)
        fixed_bytes = unplanned_bytes(tagged, materialization, of_plans=True)
        least_fixed_bytes = memory_figures(tagged).fixed_bytes
    options = planner_options(planner, target.alignment_bytes)

    def with_scratch(scratch_bytes: Mapping[int, int]) -> list[StepGraph]:
        stored = materialization.with_scratch(scratch_bytes)
        return _graphs(traced.program, stored, target, options)

    graphs = with_scratch({})
    log(f"graph: {graphs[0]}")
    return BudgetSearch(
        graphs,
        options,
        fixed_bytes,
        placing.placement(traced, None if tagged is None else materialization),
        traced.compile,
        log,
        with_scratch,
        readable=traced.readable,
        least_fixed_bytes=least_fixed_bytes,
        unmodified_bytes=works_bytes,
        caller=caller,
    )


def _graphs(
    program: Program,
    materialization: StoredValues,
    target: Target,
    options: PlanOptions,
) -> list[StepGraph]:
    """The step in XLA's order and, for the planner that compares plans, in another."""
    orders = (False, True) if options.policy == "search" else (False,)
    return [build_graph(program, materialization, target, early=e) for e in orders]


def _fitted(
    traced: TracedStep,
    search: BudgetSearch,
    found: Measured,
    budget_bytes: int,
    unmodified_bytes: int,
) -> FittedStep:
    plan = planned_plan(
        traced.device(),
        budget_bytes,
        unmodified_bytes,
        _OF_UNMODIFIED + search.num_compilations,
        found,
    )
    chosen = found.candidate
    return FittedStep(found.compiled, traced.jit(chosen.realized.program), plan, chosen)


def placed_otherwise(
    traced: TracedStep, fitted: FittedStep, placing: Placing
) -> tuple[Any, ArenaPlan | None]:
    """The same schedule compiled for another placement, whatever that needs.

    To compare placements; a step under a budget is planned for the one that it has.
    """
    chosen = fitted.candidate
    assert chosen is not None, "the step was left as it is: there is no schedule"
    placement = placing.placement(traced)
    realized = placement.realize(chosen.graph, chosen.schedule)
    return traced.compile(realized.program), realized.arena


def compile_both(traced: TracedStep) -> tuple[Any, int, Any]:
    """The step as written with its need, which the plan is compared with, and the tagged
    flat program, which says what XLA stores. They differ: inlining dissolves the user's
    `jax.checkpoint`s, and merging equal broadcasts early already saves memory. Either is
    None where XLA refuses to compile what the device cannot hold."""
    lowered = traced.lower_as_written()
    tagged = traced.lower(tag(traced.program))

    def compile_tagged() -> Any:
        return compile_to_read(lambda: traced.compile_afresh(tagged))

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(compile_tagged)
        compiled, unmodified_bytes = compile_measured(
            lambda: traced.compile_lowered(lowered)
        )
        return compiled, unmodified_bytes, future.result()


def predict_step(
    traced: TracedStep,
    budget: int | str,
    planner: str | PlanOptions,
    caller: str = "remat_train_step",
) -> Program:
    """The rewritten step, from the prediction alone.

    For tracing under an outer transformation, where nothing can be compiled. XLA places
    the tensors: an arena can be neither batched nor differentiated. Where the prediction
    says that no plan fits, a warning says so, and the plan is the tightest.
    """
    device = _compat.default_device()
    target = target_of(device)
    options = planner_options(planner, target.alignment_bytes)
    program = traced.program
    graphs = _graphs(program, from_rules(program), target, options)
    fixed_bytes = predicted_fixed_bytes(program)
    unmodified = needed_bytes(unconstrained(graphs[0], options), options) + fixed_bytes
    budget_bytes = resolve_budget(budget, unmodified, device, caller)
    if unmodified <= budget_bytes:
        return program
    placement = XLA_PLACES.placement(traced)
    search = BudgetSearch(
        graphs,
        options,
        fixed_bytes,
        placement,
        traced.compile,
        lambda line: None,
        unmodified_bytes=unmodified,
        caller=caller,
    )
    try:
        candidate = search.predict(budget_bytes)
    except InfeasibleBudgetError as error:
        # Arguments and results are certain; the rest may be mispredicted either way, and
        # nothing here can find out. A percentage is one of a prediction.
        if isinstance(budget, int) and budget_bytes < fixed_bytes:
            raise
        warnings.warn(
            f"A step made by `{caller}` is called inside of a transformation such as "
            "`jax.jit` or `jax.grad`, where its bytes can only be predicted: "
            f"{format_bytes(error.smallest_bytes)} at least, of a budget of "
            f"{format_bytes(budget_bytes)}. It recomputes all that helps. To have the "
            "budget verified, call it outside, with the whole step inside of it.",
            stacklevel=2,
        )
        candidate = search.predict(error.smallest_bytes)
    return candidate.realized.program


def unplanned_bytes(
    tagged: Any, materialization: StoredValues, *, of_plans: bool = False
) -> int:
    """Arguments, results, and what XLA stores beside the values that are planned, of the
    step as written or of its plans.

    Of a step that mostly lives in a TPU's vector memory nearly everything is unlisted and
    not fixed at all: counted, it would refuse budgets that XLA keeps.
    """
    figures = memory_figures(tagged)
    most = figures.temp_bytes // _MOST_UNLISTED
    unlisted_bytes = materialization.unlisted_bytes
    if of_plans:
        unlisted_bytes += materialization.more_unlisted_of_plans
    return figures.fixed_bytes + min(unlisted_bytes, most) + materialization.standing_bytes


def predicted_fixed_bytes(program: Program) -> int:
    """Bytes of arguments and results of a program, aliased ones counted once."""
    inputs = sum(aval_bytes(v.aval) for v in program.invars)
    outputs = sum(aval_bytes(v.aval) for v in program.outvars)
    donated = sum(
        aval_bytes(v.aval)
        for v, is_donated in zip(program.invars, program.donated, strict=True)
        if is_donated
    )
    return inputs + max(0, outputs - donated)
