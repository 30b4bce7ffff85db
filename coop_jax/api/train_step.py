"""Train step: `remat_train_step`, a training step under a byte budget."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from coop_jax.api.budgeted_jit import BudgetedJit, Settings
from coop_jax.api.frontends import equinox, flax_nnx
from coop_jax.api.frontends.inner import Act
from coop_jax.api.results_check import Check
from coop_jax.arena.stats import ArenaStats, is_debugged
from coop_jax.base import _compat_jit
from coop_jax.base.budget import check_budget, format_bytes
from coop_jax.compile.dynamic_arguments import map_dynamic
from coop_jax.compile.traced_step import TracedStep
from coop_jax.plan.planner import PlanOptions, planner_options
from coop_jax.report import Plan
from coop_jax.saved.recipe import PlanFile
from coop_jax.search.placements import PLACEMENTS


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
    plan: str | os.PathLike[str] | None = None,
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
    Arguments that the step replaces should be donated, as with `jax.jit`; on CPU,
    arguments that are not are never copied except where a recomputation reads nothing
    else. Flax NNX objects among the arguments are updated in place, as by `nnx.jit`, and
    donated unless `donate_argnums` or `donate_argnames` is given. Of pytrees with
    Equinox modules the arrays are traced and the rest is static, as by `filter_jit`.

    Under an outer transformation (`jit`, `grad`, `vmap`, `shard_map`) nothing can be
    compiled: there the step is planned from the prediction alone, which is not verified;
    where that exceeds the budget, a warning says so. Differentiated, it is the step as
    written, `custom_jvp` and `custom_vjp` rules included. Inside of another planned step
    it is a part of that.

    The method is Coop's ("Coop: Memory is not a Commodity", NeurIPS 2023), run ahead of
    time on the whole step.

    Arguments:
        fn: the step: a pure function of pytrees of arrays, its gradients and optimizer
            update included, or one that updates Flax NNX objects. May already be jitted,
            by `jax.jit`, `nnx.jit` or `equinox.filter_jit`: its options are kept, and
            those given here override them.
        budget: bytes per device (int), or a string: `"12GiB"`, `"750MB"`, `"60%"` of
            the bytes of the unmodified step, `"device"` for the bytes that the device
            reports, `"no-xla-remat"` for these without rematerialization by XLA itself.
        planner: `"search"` (whole plans compared, never worse than the others),
            `"lookahead"` (Coop with exact next uses), `"coop"` (the paper), `"dtr"`,
            `"dte"`, or a `PlanOptions` with its switches.
        placement: the placement of planned tensors. `"xla"`: by XLA's buffer assignment.
            `"arena"`, on one CPU or NVIDIA GPU: those with long idle intervals lie in one
            contiguous buffer meanwhile, at the plan's offsets; custom calls store and load
            them. The buffer is allocated at the first call and kept for the later ones
            (`release_arenas()` frees it).
            Under an outer transformation it is `"xla"` in any case.
        arena_debug: checked mode: each of these custom calls compares the bytes that it
            loads with those that were stored, fills free memory with a pattern, and fails
            with tensor, offset and boundary in its message; `arena_stats()` has the copies.
            Default: the environment variable `COOP_JAX_ARENA_DEBUG`.
        in_shardings, out_shardings, static_argnums, static_argnames, donate_argnums,
            donate_argnames, keep_unused, compiler_options: as in `jax.jit`.
        plan: path of a file that `plan.save(path)` wrote, for the same step: then nothing
            is planned, and one executable is compiled. Refused, with the first difference
            named, where the step, its arguments, the target or the options above differ,
            and where XLA needs more than `budget`. Default: the step is planned.
        verbose: print a line to stderr for every compilation, and the plan.

    Returns:
        A `RematTrainStep`: callable, with `.plan(*args)`, `.check(*args)`,
        `.lower(*args)`, `.trace(*args)`. Without `fn`, a decorator.

    Raises:
        InfeasibleBudgetError: on the first call, if no plan fits. It names the smallest
            budget that does, and the operation that forbids less.
        PlanFileError: the plan file cannot be used: at once, if it is malformed, or else on
            the first call.
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
    file = None if plan is None else PlanFile.read(plan, "remat_train_step")

    def decorate(function: Callable) -> RematTrainStep:
        if not callable(function):
            raise TypeError(
                "`remat_train_step(fn, ...)` must be given a callable. "
                f"Got {function!r} of type {type(function).__name__}."
            )
        settings = Settings(budget, planner, placement, is_checked, verbose, file=file)
        return RematTrainStep(function, settings, jit_options)

    return decorate if fn is None else decorate(fn)


class RematTrainStep:
    """A training step under a budget; made by `remat_train_step`.

    Called like the function that it was made from. One plan is made per kind of arguments
    (shapes, types, shardings, static values) and kept. Safe to call from several threads.
    Copies and pickles hold the step and its settings, and plan anew.
    """

    def __init__(self, fn: Callable, settings: Settings, jit_options: dict[str, Any]):
        functools.update_wrapper(self, fn, updated=())
        self.__wrapped__ = fn
        self._fn = fn
        self._settings = settings
        self._jit_options = jit_options
        # By the library that wraps the call, and the arguments that it donates by itself.
        self._steps: dict[Any, Any] = {}
        self._sees_objects = False
        self._direct = self._made_direct()

    @property
    def budget(self) -> int | str:
        """The budget as given, checked: bytes (int) or a string."""
        return self._settings.budget

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._sees_objects:
            return self._step_for(args, kwargs)(*args, **kwargs)
        return self._direct(*args, **kwargs)

    def plan(self, *args: Any, target: Any = None, **kwargs: Any) -> Plan:
        """The plan for these arguments (arrays or `jax.ShapeDtypeStruct`s).

        Arguments:
            target: None for the devices that the arguments are on, or the name of one
                that may be absent: `"h200"`, `"tpu v5e"`, `"cpu"`
                (`coop_jax.targets.names()` lists them). Where the step itself takes an
                argument called `target`, it is the step's: then use `plan_for`.

        Raises:
            InfeasibleBudgetError: if no plan fits.
            ValueError: if the target's name is unknown, or the arguments are sharded over
                other devices.
            ImportError: if XLA's compiler for the target is not installed.
        """
        if target is not None and "target" in _parameters(self._fn):
            kwargs, target = {**kwargs, "target": target}, None
        return self.plan_for(target, args, kwargs)

    def plan_for(self, target: str | None, args: tuple, kwargs: dict) -> Plan:
        """The plan of `plan`, with the target apart from the step's arguments.

        Arguments:
            target: as in `plan`.
            args, kwargs: the step's arguments, by position and by name.
        """
        return self._within(
            args, kwargs, lambda budgeted, args, kwargs: budgeted.plan(target, args, kwargs)
        )

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """Run the planned step and the step as written once, and compare all results.

        For a first check with real arguments. Both run on copies, one after the other, so
        the device needs memory for the step as written and for the copies. A smaller batch
        has a plan of its own, which is similar where the budget is a percentage.

        Returns:
            The largest difference of every result; prints as a short report. Planned
            steps are evaluated in another order of fusion, so floats may differ by
            roundings; integers do not.
        """
        step = self._step_for(args, kwargs)
        return step.check(args, kwargs)

    def called_by(self, caller: str) -> RematTrainStep:
        """The same step, whose errors name another public function.

        Arguments:
            caller: that function's name, such as `"fit"`.
        """
        settings = dataclasses.replace(self._settings, caller=caller)
        return RematTrainStep(self._fn, settings, self._jit_options)

    def arena_stats(self) -> ArenaStats:
        """The copies of the last call into and out of its arena, as its exchanges recorded.

        Waits for that call. Needs `arena_debug=True`. If it called the step as written,
        or nothing was worth an arena, there are no events.

        Raises:
            RuntimeError: if there was no call, or none was recorded.
        """
        if not self._settings.checks_exchanges:
            raise RuntimeError(
                "`arena_stats()` needs the exchange log of a step made by "
                '`remat_train_step(placement="arena", arena_debug=True)`. Got one with '
                f"`placement={self._settings.placement!r}` that keeps none."
            )
        return self._all_budgeted()[-1].arena_stats()

    def release_arenas(self) -> None:
        """Free the arenas that are kept for later calls with `placement="arena"`.

        Calls that run in other threads keep theirs. The next call allocates again.
        """
        for budgeted in self._all_budgeted():
            budgeted.release_arenas()

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """The planned step, lowered; as `jax.jit(fn).lower`."""
        return self._within(args, kwargs, BudgetedJit.lower)

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """The planned step, traced; as `jax.jit(fn).trace`."""
        return self._within(args, kwargs, BudgetedJit.trace)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Types of the results; nothing is planned. As `jax.jit(fn).eval_shape`."""
        step = self._step_for(args, kwargs)
        if isinstance(step, BudgetedJit):
            return step.jitted.eval_shape(*args, **kwargs)
        return step.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans; as `jax.jit(fn).clear_cache`."""
        for budgeted in self._all_budgeted():
            budgeted.clear_cache()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # As of `jax.jit`: `trainer.step(x)`, and `trainer.step.plan(trainer, x)`.
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        return RematTrainStep, (self._fn, self._settings, self._jit_options)

    def __deepcopy__(self, memo: dict) -> RematTrainStep:
        # Like `copy.deepcopy` of a function, which is the function.
        return RematTrainStep(self._fn, self._settings, self._jit_options)

    def __repr__(self) -> str:
        name = getattr(self._fn, "__qualname__", None) or repr(self._fn)
        budget = self.budget
        shown = budget if isinstance(budget, str) else format_bytes(budget)
        planned = sum(budgeted.num_planned for budgeted in self._all_budgeted())
        return f"RematTrainStep({name}, budget={shown}, {planned} planned)"

    def _made_direct(self) -> Any:
        """The function for calls without objects of a library."""
        fn, options = self._fn, self._jit_options
        if flax_nnx.is_jitted(fn):
            return flax_nnx.NnxStep(fn, options, self._made, copies_shared=False)
        if equinox.is_jitted(fn):
            return equinox.FilterJittedStep(fn, options, self._made)
        if _compat_jit.is_jitted(fn):
            fn, own = _compat_jit.jit_parts(fn)
            return self._made(jax.jit(fn, **_overlaid(own, options)))
        return BudgetedJit(jax.jit(fn, **options), self._settings, self._detour)

    def _made(self, jitted: Any) -> BudgetedJit:
        return BudgetedJit(jitted, self._settings)

    def _detour(self, args: tuple, kwargs: dict) -> Callable[[], Any] | None:
        """The call of a plain step whose arguments are objects of a library."""
        step = self._step_for(args, kwargs)
        if step is self._direct:
            return None
        self._sees_objects = True
        return lambda: step(*args, **kwargs)

    def _step_for(self, args: tuple, kwargs: dict) -> Any:
        """The function that runs a call with such arguments."""
        if not isinstance(self._direct, BudgetedJit) or _compat_jit.is_jitted(self._fn):
            return self._direct
        fn, options = self._fn, self._jit_options
        jitted = self._direct.jitted
        dynamic_args, dynamic_kwargs = map_dynamic(jitted, lambda x: x, args, kwargs)
        if flax_nnx.has_nodes((dynamic_args, dynamic_kwargs)):
            donated = flax_nnx.donated(args, kwargs, options)
            key = "nnx", *map(tuple, donated.values())
            if key not in self._steps:
                wrapped = flax_nnx.jitted_with(fn, {**options, **donated})
                step = flax_nnx.NnxStep(
                    wrapped, {}, self._made, copies_shared=bool(donated)
                )
                self._steps.setdefault(key, step)
            return self._steps[key]
        if equinox.has_modules((dynamic_args, dynamic_kwargs)):
            if "equinox" not in self._steps:
                step = equinox.FilteredStep(fn, options, self._made)
                self._steps.setdefault("equinox", step)
            return self._steps["equinox"]
        return self._direct

    def _within(self, args: tuple, kwargs: dict, act: Act) -> Any:
        """The result of `act` on the budgeted function of a call and its arguments."""
        step = self._step_for(args, kwargs)
        if isinstance(step, BudgetedJit):
            return act(step, args, kwargs)
        return step.within(args, kwargs, act)

    def _all_budgeted(self) -> list[BudgetedJit]:
        steps = [self._direct, *self._steps.values()]
        return [s if isinstance(s, BudgetedJit) else s.budgeted for s in steps]


def traced_step(step: RematTrainStep, target: str | None, args: tuple) -> TracedStep:
    """The traced step of a call, before any plan; its library's `jit` is inside.

    Arguments:
        step: the step.
        target: as in `RematTrainStep.plan`.
        args: its arguments.
    """
    return step._within(
        args, {}, lambda budgeted, args, kwargs: budgeted.traced(target, args, kwargs)
    )


def _overlaid(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Options of a jitted function, overridden by those given to `remat_train_step`.

    Static or donated arguments are given by position, by name, or by both: one of the two,
    if given, replaces both.
    """
    merged = dict(own)
    for kind in ("static", "donate"):
        names = f"{kind}_argnums", f"{kind}_argnames"
        if any(name in given for name in names):
            for name in names:
                merged.pop(name, None)
    return {**merged, **given}


def _parameters(fn: Callable) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(fn).parameters)
    except (ValueError, TypeError):
        return frozenset()
