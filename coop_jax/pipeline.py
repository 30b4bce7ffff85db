"""Pipeline: from a traced step to a compiled step under a budget."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from coop_jax import _compat, materialize
from coop_jax.arena import NO_ARENA, ArenaPlan
from coop_jax.arena_run import (
    StepWithArena,
    carried,
    carried_jit_options,
    has_arena,
    with_arena_parameter,
)
from coop_jax.arena_stats import ArenaStats, planned_stats, recorded_stats
from coop_jax.budget import format_bytes, resolve_budget
from coop_jax.costs import aval_bytes, flops
from coop_jax.exchange import empty_arena
from coop_jax.graph import StepGraph, build_graph
from coop_jax.measure import compile_measured, memory_figures
from coop_jax.plan import PlanOptions, needed_bytes, planner_options, unconstrained
from coop_jax.program import Program
from coop_jax.realize import ArenaPlacement, XlaPlacement
from coop_jax.report import Plan, planned_plan, unmodified_plan
from coop_jax.targets import Target, target_of
from coop_jax.trace import flatten
from coop_jax.verify import BudgetSearch, Candidate, Measured

# What XLA's temporaries take beyond the buffers it lists counts as fixed up to this part.
_MOST_UNLISTED = 10
# Compilations before any plan: the step as written, and the one that says what is stored.
_OF_UNMODIFIED = 2


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """A traced step: its flat program, and how to jit another program in its place.

    Attributes:
        program: the flat program.
        fn: the function as given.
        args, kwargs: the arguments it was traced for.
        jit_options: as given to `jax.jit`.
        out_tree: tree of the results.
        drop_static: separates the dynamic arguments.
    """

    program: Program
    fn: Callable
    args: tuple
    kwargs: dict
    jit_options: dict[str, Any]
    out_tree: Any
    drop_static: Callable[[tuple, dict], tuple[tuple, dict]]

    @staticmethod
    def trace(fn, jit_options, args, kwargs, drop_static) -> TracedStep:
        jit_options = dict(jit_options)
        is_jitted = hasattr(fn, "trace") and hasattr(fn, "lower")
        if is_jitted and not jit_options:
            traced = fn.trace(*args, **kwargs)
            jit_options = _donation(traced, args)
        else:
            traced = jax.jit(fn, **jit_options).trace(*args, **kwargs)
        infos = jax.tree.leaves(
            traced.args_info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo)
        )
        return TracedStep(
            program=flatten(traced.jaxpr, [info.donated for info in infos]),
            fn=fn,
            args=args,
            kwargs=kwargs,
            jit_options=jit_options,
            out_tree=jax.tree.structure(traced.out_info),
            drop_static=drop_static,
        )

    def function(self, program: Program) -> Callable:
        """A program as a function with the step's own signature."""
        run = _compat.jaxpr_as_fun(program.to_jaxpr())

        def step(*args, **kwargs):
            leaves = jax.tree.leaves(self.drop_static(args, kwargs))
            return jax.tree.unflatten(self.out_tree, run(*leaves))

        return functools.wraps(self.fn)(step)

    def jit(self, program: Program) -> Any:
        return jax.jit(self.function(program), **self.jit_options)

    def carrying(self, program: Program) -> StepWithArena:
        """A program with an arena, compiled to get it as an argument."""
        arena = program.eqns[0].outvars[0].aval
        run = _compat.jaxpr_as_fun(carried(program).to_jaxpr())

        def step(arena, /, *args, **kwargs):
            leaves = jax.tree.leaves(self.drop_static(args, kwargs))
            arena, *results = run(arena, *leaves)
            return arena, jax.tree.unflatten(self.out_tree, results)

        step = with_arena_parameter(functools.wraps(self.fn)(step))
        on_device = jax.sharding.SingleDeviceSharding(self.device())
        place = jax.ShapeDtypeStruct(arena.shape, arena.dtype, sharding=on_device)
        with _without_donation_warning():
            jitted = jax.jit(step, **carried_jit_options(self.jit_options))
            compiled = jitted.lower(place, *self.args, **self.kwargs).compile()
        return StepWithArena(
            compiled, jax.jit(lambda: empty_arena(arena), out_shardings=on_device)
        )

    def lower(self, program: Program) -> Any:
        """Lower a program in the step's place.

        Without the warning about donated buffers that nothing can use: JAX has given it
        for the step as written.
        """
        with _without_donation_warning():
            return self.jit(program).lower(*self.args, **self.kwargs)

    def compile(self, program: Program) -> Any:
        if has_arena(program):
            return self.carrying(program)
        return self.lower(program).compile()

    def device(self) -> Any:
        """One of the devices the step runs on."""
        devices = next(self._device_sets(), None)
        if devices is None:
            return _compat.default_device()
        return min(devices, key=lambda d: d.id)

    def num_devices(self) -> int:
        """How many devices its arguments lie on, or are to lie on."""
        return max(map(len, self._device_sets()), default=1)

    def _device_sets(self) -> Iterator[set[Any]]:
        leaves = jax.tree.leaves(self.drop_static(self.args, self.kwargs))
        for leaf in leaves:
            if not _compat.is_traced([leaf]):
                yield from _device_set(getattr(leaf, "sharding", None))
        for name in ("in_shardings", "out_shardings"):
            for sharding in jax.tree.leaves(self.jit_options.get(name)):
                yield from _device_set(sharding)


def _device_set(sharding: Any) -> Iterator[set[Any]]:
    if isinstance(sharding, jax.sharding.Sharding):
        yield sharding.device_set


@contextlib.contextmanager
def _without_donation_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


@dataclasses.dataclass(frozen=True)
class Placing:
    """Where planned tensors live: a name of `PLACEMENTS`, and for an arena the number of
    the books that its exchanges keep, None if they are not checked."""

    name: str = "xla"
    books: int | None = None

    def placement(self, traced: TracedStep) -> XlaPlacement:
        """The placement for a step, which an arena can only have on one device."""
        device = traced.device()
        if self.name != "arena":
            return XlaPlacement(traced.program, device.platform)
        if traced.num_devices() > 1:
            raise ValueError(
                '`remat_train_step(placement="arena")` is for steps on one device. Got '
                f'arguments over {traced.num_devices()}: use `placement="xla"`, which '
                "plans what each device keeps."
            )
        return ArenaPlacement(
            traced.program, device.platform, target_of(device), self.books
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
) -> FittedStep:
    """Trace -> materialise -> graph -> plan -> rewrite -> compile -> verify.

    `unmodified` is what `compile_both` returned, for several budgets of one step.
    """
    as_written, unmodified_bytes, tagged = unmodified or compile_both(traced)
    device = traced.device()
    budget_bytes = resolve_budget(budget, unmodified_bytes, device)
    log(
        f"unmodified step: {format_bytes(unmodified_bytes)}, budget "
        f"{format_bytes(budget_bytes)}"
    )
    if as_written is not None and unmodified_bytes <= budget_bytes:
        total_flops = sum(map(flops, traced.program.eqns))
        plan = unmodified_plan(
            device, budget_bytes, unmodified_bytes, _OF_UNMODIFIED, total_flops
        )
        return FittedStep(as_written, jax.jit(traced.fn, **traced.jit_options), plan)
    search = _search(traced, planner, log, tagged, placing)
    del as_written, tagged, unmodified
    found = search.run(budget_bytes)
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
    found = search.smallest()
    return _fitted(traced, search, found, found.total_bytes, unmodified_bytes)


def _search(
    traced: TracedStep,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    tagged: Any,
    placing: Placing,
) -> BudgetSearch:
    """The search for a step under a budget; `tagged` is None if XLA refused it."""
    device = traced.device()
    target = target_of(device)
    if tagged is None:
        materialization = materialize.from_rules(traced.program)
        fixed_bytes = predicted_fixed_bytes(traced.program)
    else:
        materialization = materialize.of_compiled(traced.program, tagged)
        fixed_bytes = unplanned_bytes(tagged, materialization)
    options = planner_options(planner, target.alignment_bytes)
    graphs = _graphs(traced.program, materialization, target, options)
    log(f"graph: {graphs[0]}")
    placement = placing.placement(traced)
    return BudgetSearch(graphs, options, fixed_bytes, placement, traced.compile, log)


def _graphs(
    program: Program,
    materialization: materialize.Materialization,
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
    as_written = jax.jit(traced.fn, **traced.jit_options)
    lowered = as_written.lower(*traced.args, **traced.kwargs)
    tagged = traced.lower(materialize.tag(traced.program))
    fixed_bytes = predicted_fixed_bytes(traced.program)

    def compile_tagged() -> Any:
        with _compat.without_compilation_cache():
            return compile_measured(tagged.compile, fixed_bytes)[0]

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(compile_tagged)
        compiled, unmodified_bytes = compile_measured(lowered.compile, fixed_bytes)
        return compiled, unmodified_bytes, future.result()


def predict_step(
    traced: TracedStep, budget: int | str, planner: str | PlanOptions
) -> Callable:
    """The rewritten step as a function, from the prediction alone.

    For tracing under an outer transformation, where nothing can be compiled. XLA places
    the tensors: an arena can be neither batched nor differentiated.
    """
    device = _compat.default_device()
    target = target_of(device)
    options = planner_options(planner, target.alignment_bytes)
    program = traced.program
    graphs = _graphs(program, materialize.from_rules(program), target, options)
    fixed_bytes = predicted_fixed_bytes(program)
    unmodified = needed_bytes(unconstrained(graphs[0], options), options) + fixed_bytes
    budget_bytes = resolve_budget(budget, unmodified, device)
    if unmodified <= budget_bytes:
        return traced.function(program)
    placement = XLA_PLACES.placement(traced)
    search = BudgetSearch(
        graphs, options, fixed_bytes, placement, traced.compile, lambda line: None
    )
    return traced.function(search.predict(budget_bytes).realized.program)


def unplanned_bytes(tagged: Any, materialization: materialize.Materialization) -> int:
    """Arguments, results, and what XLA stores beside the values that are planned.

    Of a step that mostly lives in a TPU's vector memory nearly everything is unlisted and
    not fixed at all: counted, it would refuse budgets that XLA keeps.
    """
    figures = memory_figures(tagged)
    most = figures.temp_bytes // _MOST_UNLISTED
    return figures.fixed_bytes + min(materialization.unlisted_bytes, most)


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


def _donation(traced: Any, args: tuple) -> dict[str, Any]:
    """`donate_argnums`/`donate_argnames` of a function that is already jitted."""
    infos, named_infos = traced.args_info
    if len(infos) != len(args):
        raise ValueError(
            "`remat_train_step(fn, ...)` got a jitted function with static arguments, "
            "which it cannot see from outside. Pass the function without `jax.jit` and "
            "give `static_argnums=`/`static_argnames=` to `remat_train_step`."
        )

    def is_donated(info: Any) -> bool:
        leaves = jax.tree.leaves(info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo))
        return bool(leaves) and all(leaf.donated for leaf in leaves)

    nums = tuple(i for i, info in enumerate(infos) if is_donated(info))
    names = tuple(k for k, info in named_infos.items() if is_donated(info))
    options: dict[str, Any] = {}
    if nums:
        options["donate_argnums"] = nums
    if names:
        options["donate_argnames"] = names
    return options
