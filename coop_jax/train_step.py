"""Front door: `remat_train_step`, a training step under a byte budget."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from coop_jax import _compat, topology
from coop_jax.arena_run import StepWithArena
from coop_jax.arena_stats import ArenaStats, is_debugged, new_books
from coop_jax.arguments import StaticArguments, leaf_key
from coop_jax.budget import check_budget, format_bytes
from coop_jax.pipeline import FittedStep, Placing, fit_step, predict_step
from coop_jax.plan import PlanOptions, planner_options
from coop_jax.realize import PLACEMENTS
from coop_jax.report import Plan
from coop_jax.traced_step import TracedStep


def remat_train_step(
    fn: Callable | None = None,
    *,
    budget: int | str,
    planner: str | PlanOptions = "search",
    placement: str = "xla",
    arena_debug: bool | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    compiler_options: dict[str, Any] | None = None,
    verbose: bool = False,
) -> Any:
    """Make a training step fit into a byte budget, with the least recomputation found.

    Used like `jax.jit`, as a function or as a decorator::

        step = coop_jax.remat_train_step(train_step, budget="12GiB", donate_argnums=0)

        @coop_jax.remat_train_step(budget="60%", donate_argnums=0)
        def train_step(state, batch): ...

    On the first call for a kind of arguments the step is traced, planned, compiled and
    measured; it computes the same values as `jax.jit(fn)`, and XLA's own figure for it
    (arguments + results - aliased + temporaries, on one device) is at most the budget.
    Under an outer transformation (`jit`, `grad`, `vmap`) nothing can be compiled: there
    the step is rewritten from the prediction alone, which is not verified. Arguments
    that the step replaces should be donated, as with `jax.jit`; on CPU, arguments that
    are not are never copied except where a recomputation reads nothing else.

    The method is Coop's ("Coop: Memory is not a Commodity", NeurIPS 2023), run ahead of
    time on the whole step.

    Arguments:
        fn: the step: a pure function of pytrees of arrays, its gradients and optimizer
            update included. May already be jitted (its donation is then kept).
        budget: bytes per device (int), or a string: `"12GiB"`, `"750MB"`, `"60%"` of
            what the unmodified step needs, `"device"` for what the device reports.
        planner: `"search"` (whole plans compared, never worse than the others),
            `"lookahead"` (Coop with exact next uses), `"coop"` (the paper), `"dtr"`,
            `"dte"`, or a `PlanOptions` with its switches.
        placement: where planned tensors live. `"xla"`: XLA lays them out. `"arena"`, on
            one CPU or NVIDIA GPU: those that wait long lie in one contiguous buffer, at
            the plan's offsets, between being stored and being brought back by a custom
            call. The buffer is allocated at the first call and kept for the later ones
            (`release_arenas()` gives it back).
            Under an outer transformation it is `"xla"` all the same.
        arena_debug: whether these calls keep books: each checks that what it brings back
            is what was stored, fills what is free with a pattern, and fails naming tensor,
            offset and boundary; `arena_stats()` tells what they did. Default: the
            environment variable `COOP_JAX_ARENA_DEBUG`.
        in_shardings, out_shardings, static_argnums, static_argnames, donate_argnums,
            donate_argnames, keep_unused, compiler_options: as in `jax.jit`.
        verbose: print a line to stderr for every compilation, and the plan.

    Returns:
        A `RematTrainStep`: callable, with `.plan(*args)`, `.lower(*args)`,
        `.trace(*args)`. Without `fn`, a decorator.

    Raises:
        InfeasibleBudgetError: on the first call, if no plan fits. It names the smallest
            budget that does, and the operation that forbids less.
        TypeError, ValueError: at once, if an argument is malformed.
    """
    jit_options = {
        name: value
        for name, value in {
            "in_shardings": in_shardings,
            "out_shardings": out_shardings,
            "static_argnums": static_argnums,
            "static_argnames": static_argnames,
            "donate_argnums": donate_argnums,
            "donate_argnames": donate_argnames,
            "keep_unused": keep_unused or None,
            "compiler_options": compiler_options,
        }.items()
        if value is not None
    }
    budget = check_budget(budget)
    planner_options(planner, 64)  # raises now rather than on the first call
    if placement not in PLACEMENTS:
        raise ValueError(
            f"`remat_train_step(placement=...)` must be one of {', '.join(PLACEMENTS)}. "
            f"Got {placement!r}."
        )
    if arena_debug and placement != "arena":
        raise ValueError(
            '`remat_train_step(arena_debug=True)` needs `placement="arena"`. '
            f"Got `placement={placement!r}`, which has no arena."
        )
    is_checked = placement == "arena" and is_debugged(arena_debug)

    def decorate(function: Callable) -> RematTrainStep:
        if not callable(function):
            raise TypeError(
                "`remat_train_step(fn, ...)` must be given a callable. "
                f"Got {function!r} of type {type(function).__name__}."
            )
        return RematTrainStep(
            function, budget, planner, placement, is_checked, jit_options, verbose
        )

    return decorate if fn is None else decorate(fn)


class RematTrainStep:
    """A training step under a budget; made by `remat_train_step`.

    Called like the function it was made from. One plan is made per kind of arguments
    (shapes, types, shardings, static values) and kept. Safe to call from threads.
    """

    def __init__(
        self,
        fn: Callable,
        budget: int | str,
        planner: str | PlanOptions,
        placement: str,
        keeps_books: bool,
        jit_options: dict[str, Any],
        verbose: bool,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.budget = budget
        self.caller = "remat_train_step"  # The function that errors name.
        self._fn = fn
        self._planner = planner
        self._placement = placement
        self._keeps_books = keeps_books
        self._last_called: FittedStep | None = None
        self._jit_options = jit_options
        self._verbose = verbose
        self._static = StaticArguments(fn, jit_options)
        self._fitted: dict[Any, FittedStep] = {}
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic = self._static.drop(args, kwargs)
        leaves, _ = jax.tree.flatten(dynamic)
        if _compat.is_traced(leaves):
            return self._predicted(args, kwargs)(*args, **kwargs)
        fitted = self._fit(args, kwargs)
        results = fitted.compiled(*dynamic[0], **dynamic[1])
        self._last_called = fitted
        return results

    def plan(self, *args: Any, target: Any = None, **kwargs: Any) -> Plan:
        """The plan for these arguments (arrays or `jax.ShapeDtypeStruct`s).

        Arguments:
            target: None for the devices that the arguments live on, or the name of one
                that need not be there: `"h200"`, `"tpu v5e"`, `"cpu"`
                (`coop_jax.targets.names()` lists them). Where the step itself takes an
                argument called `target`, it is the step's: then use `plan_for`.

        Raises:
            InfeasibleBudgetError: if no plan fits.
            ValueError: if the target's name is unknown or the arguments are sharded.
            ImportError: if XLA's compiler for the target is not installed.
        """
        if target is not None and "target" in self._static.parameters:
            kwargs, target = {**kwargs, "target": target}, None
        return self.plan_for(target, args, kwargs)

    def plan_for(self, target: str | None, args: tuple, kwargs: dict) -> Plan:
        """As `plan`, without a way to confuse the target with the step's arguments."""
        if target is not None:
            device = topology.named_device(target)
            args, kwargs = self._static.map_dynamic(
                lambda tree: topology.placed(tree, device), args, kwargs
            )
        return self._fit(args, kwargs).plan

    def arena_stats(self) -> ArenaStats:
        """What the last call did in its arena, as the custom calls recorded it.

        Waits for that call. Needs `arena_debug=True`. If it called the step as written,
        or nothing was worth an arena, there are no events.

        Raises:
            RuntimeError: if there was no call, or no books were kept.
        """
        if not self._keeps_books:
            raise RuntimeError(
                "`arena_stats()` needs the books of a step made by "
                '`remat_train_step(placement="arena", arena_debug=True)`. Got one with '
                f"`placement={self._placement!r}` that keeps none."
            )
        called = self._last_called
        if called is None:
            raise RuntimeError("`arena_stats()` tells of a call. Call the step first.")
        return called.arena_stats()

    def release_arenas(self) -> None:
        """Give back the memory that calls with `placement="arena"` keep for the next.

        What other threads are calling just now keeps its arena. The next call allocates
        again.
        """
        with self._lock:
            fitted_steps = list(self._fitted.values())
        for fitted in fitted_steps:
            if isinstance(fitted.compiled, StepWithArena):
                fitted.compiled.release()

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The planned step, lowered; as `jax.jit(fn).lower`."""
        return self._fit(args, kwargs).jitted.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The planned step, traced; as `jax.jit(fn).trace`."""
        return self._fit(args, kwargs).jitted.trace(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", repr(self._fn))
        budget = self.budget
        shown = budget if isinstance(budget, str) else format_bytes(budget)
        return f"RematTrainStep({name}, budget={shown}, {len(self._fitted)} planned)"

    def _fit(self, args: tuple, kwargs: dict) -> FittedStep:
        key = self._key(args, kwargs)
        fitted = self._fitted.get(key)
        if fitted is None:
            with self._lock:
                fitted = self._fitted.get(key)
                if fitted is None:
                    fitted = fit_step(
                        self._trace(args, kwargs),
                        self.budget,
                        self._planner,
                        self._log,
                        placing=self._placing(),
                        caller=self.caller,
                    )
                    self._log(str(fitted.plan))
                    self._fitted[key] = fitted
        return fitted

    def _predicted(self, args: tuple, kwargs: dict) -> Callable:
        traced = self._trace(args, kwargs)
        return predict_step(traced, self.budget, self._planner, self.caller)

    def _placing(self) -> Placing:
        return Placing(self._placement, new_books() if self._keeps_books else None)

    def _trace(self, args: tuple, kwargs: dict) -> TracedStep:
        return TracedStep.trace(
            self._fn, self._jit_options, args, kwargs, self._static.drop
        )

    def _key(self, args: tuple, kwargs: dict) -> Any:
        dynamic = self._static.drop(args, kwargs)
        leaves, tree = jax.tree.flatten(dynamic)
        static = self._static.values(args, kwargs)
        key = tree, tuple(map(leaf_key, leaves)), static, _compat.trace_context()
        try:
            hash(key)
        except TypeError as error:
            raise ValueError(
                "Static arguments of a step made by `remat_train_step` must be "
                f"hashable, as for `jax.jit`. Got {static!r}."
            ) from error
        return key

    def _log(self, line: str) -> None:
        if self._verbose:
            print(f"[coop_jax] {line}", file=sys.stderr, flush=True)
