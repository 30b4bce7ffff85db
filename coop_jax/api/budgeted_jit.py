"""Budgeted jit: a jitted function whose executables keep a byte budget."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax

from coop_jax.api.call_arguments import kind_of_arguments
from coop_jax.api.processes import Proposal, fit_together, keep_beating
from coop_jax.api.results_check import Check, check_results
from coop_jax.api.under_transformation import TransformedCalls
from coop_jax.arena.executable import StepWithArena
from coop_jax.arena.stats import ArenaStats, new_exchange_log
from coop_jax.base import _compat_distributed, _compat_jit
from coop_jax.base.budget import NO_XLA_REMAT, resolve_budget
from coop_jax.base.errors import PlanFileError
from coop_jax.compile.dynamic_arguments import map_dynamic, without_static
from coop_jax.compile.traced_step import TracedStep, is_part_of_step
from coop_jax.fit_saved import fit_saved
from coop_jax.fitted_step import FittedStep
from coop_jax.pipeline import fit_step
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import Plan
from coop_jax.saved.fingerprint import digest
from coop_jax.saved.recipe import PlanFile
from coop_jax.saved.subject import Subject
from coop_jax.search.placements import Placing
from coop_jax.xla import absent_devices


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `remat_train_step` other than the options of `jax.jit`.

    Attributes:
        budget: bytes or a checked string.
        planner: a name or options.
        placement: the placement of planned tensors, one of `placements.PLACEMENTS`.
        checks_exchanges: whether exchanges are in checked mode and write a log.
        verbose: whether every compilation is a line on stderr.
        caller: the public function that errors name.
        file: the plan file that the step starts from; None: it is planned.
    """

    budget: int | str
    planner: str | PlanOptions = "search"
    placement: str = "xla"
    checks_exchanges: bool = False
    verbose: bool = False
    caller: str = "remat_train_step"
    file: PlanFile | None = None


# Given the arguments of a call of a new kind: the function that runs the call instead of
# the budgeted one, or None.
Detour = Callable[[tuple, dict], Callable[[], Any] | None]


class BudgetedJit:
    """A jitted function whose executables keep a budget, with the same signature.

    The dispatch of `jax.jit` finds the executable of a call: a call of a known kind takes
    as long as with `jax.jit`. One plan is made per kind of arguments and kept.

    Arguments:
        jitted: the step as written.
        settings: the settings of its plans.
        detour: returns the function that runs a call instead, or None; None: no call has
            one.
    """

    def __init__(
        self, jitted: Any, settings: Settings, detour: Detour | None = None
    ) -> None:
        self.jitted = jitted
        self._settings = settings
        self._detour = detour
        self._fitted: dict[Any, FittedStep] = {}
        self._lock = threading.RLock()
        self._last_called: FittedStep | None = None
        self._transformed = TransformedCalls(
            jitted, settings.budget, settings.planner, settings.caller
        )
        self._dispatch = _compat_jit.dispatcher(jitted, self._miss)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._dispatch(*args, **kwargs)

    def _miss(self, args: tuple, kwargs: dict) -> tuple[Any, Any]:
        """The results of a call of a kind that has no fast path, and its fast path, None
        if it can have none."""
        instead = self._detour and self._detour(args, kwargs)
        if instead is not None:
            return instead(), None
        if _compat_jit.is_transformed():
            self._refuse_file_inside()
            if is_part_of_step():
                return self.jitted(*args, **kwargs), None
            return self._transformed(args, kwargs), None
        fitted = self.fitted(args, kwargs)
        if self._settings.placement != "arena":
            return _compat_jit.call_with_fast_path(fitted.jitted, args, kwargs)
        dynamic_args, dynamic_kwargs = without_static(self.jitted, args, kwargs)
        results = fitted.compiled(*dynamic_args, **dynamic_kwargs)
        self._last_called = fitted
        return results, None

    def _refuse_file_inside(self) -> None:
        """A plan file is of a compiled step: what is called inside of a transformation is
        part of another one."""
        if self._settings.file is not None:
            raise PlanFileError(
                f"`{self._settings.caller}(plan=...)` makes a step that is compiled by "
                "itself. Got a call inside of a transformation such as `jax.jit` or "
                "`jax.grad`. Call it outside, or leave out `plan`."
            )

    @property
    def num_planned(self) -> int:
        return len(self._fitted)

    def fitted(self, args: tuple, kwargs: dict) -> FittedStep:
        """The step that keeps the budget for such arguments; planned on the first call."""
        kind = kind_of_arguments(self.jitted, args, kwargs)
        fitted = self._fitted.get(kind)
        if fitted is None:
            with self._lock:
                fitted = self._fitted.get(kind)
                if fitted is None:
                    fitted = self._fit(args, kwargs)
                    self._fitted[kind] = fitted
        return fitted

    def _fit(self, args: tuple, kwargs: dict) -> FittedStep:
        """The step of these arguments under the budget, planned now."""
        store = _compat_distributed.shared_store()
        if store is not None:
            keep_beating(store)
        traced = self._traced(args, kwargs)
        processes = traced.processes() if store is not None else ()
        if store is not None and len(processes) > 1:
            fitted = self._fit_together(traced, store, processes)
        else:
            fitted = self._fit_alone(traced, self._log)
        self._log(str(fitted.plan))
        return fitted

    def _fit_alone(self, traced: TracedStep, log: Callable[[str], None]) -> FittedStep:
        """The step under the budget, planned in this process."""
        settings = self._settings
        asked = traced, settings.budget, settings.planner, log
        how = {"placing": self._placing(), "caller": settings.caller}
        if settings.file is None:
            return fit_step(*asked, **how)
        return fit_saved(*asked, settings.file, **how)

    def _placing(self) -> Placing:
        settings = self._settings
        exchange_log = new_exchange_log() if settings.checks_exchanges else None
        return Placing(settings.placement, exchange_log)

    def _fit_together(
        self, traced: TracedStep, store: Any, processes: tuple[int, ...]
    ) -> FittedStep:
        """The step under the budget, by one plan in all of its processes."""
        settings, caller = self._settings, self._settings.caller
        placing, device = self._placing(), traced.device()
        subject = Subject.of(traced, settings.planner, placing)
        file = settings.file
        path = f"the plan of process {processes[0]}" if file is None else file.path
        step = {
            **subject.contents,
            "budget": settings.budget,
            "plan": None if file is None else digest([file.text]),
        }

        def propose(check: Callable[[], None]) -> Proposal:
            if file is not None:
                unmodified_bytes = file.plan_of(subject, caller).figures["unmodified_bytes"]
                budget = settings.budget
                budget_bytes = resolve_budget(budget, unmodified_bytes, device, caller)
                return Proposal(file.text, budget_bytes, 0)

            def log(line: str) -> None:
                check()
                self._log(line)

            plan = self._fit_alone(traced, log).plan
            return Proposal(plan.file_text(), plan.budget_bytes, plan.num_compilations)

        def realize(proposal: Proposal) -> FittedStep:
            fitted = fit_saved(
                traced,
                proposal.budget_bytes,
                settings.planner,
                self._log,
                PlanFile.of_text(path, proposal.text, caller),
                placing,
                caller,
            )
            num_compilations = fitted.plan.num_compilations + proposal.num_compilations
            plan = dataclasses.replace(fitted.plan, num_compilations=num_compilations)
            return dataclasses.replace(fitted, plan=plan)

        return fit_together(store, processes, step, propose, realize, caller)

    def plan(self, target: str | None, args: tuple, kwargs: dict) -> Plan:
        """The plan for these arguments.

        Arguments:
            target: name of a device, which may be absent; None for that of the arguments.
            args, kwargs: the step's arguments.
        """
        args, kwargs = self._placed(target, args, kwargs)
        return self.fitted(args, kwargs).plan

    def traced(self, target: str | None, args: tuple, kwargs: dict) -> TracedStep:
        """The traced step for these arguments, before any plan; arguments as of `plan`."""
        args, kwargs = self._placed(target, args, kwargs)
        return self._traced(args, kwargs)

    def _traced(self, args: tuple, kwargs: dict) -> TracedStep:
        xla_rematerializes = self._settings.budget != NO_XLA_REMAT
        return TracedStep.of(
            self.jitted, args, kwargs, xla_rematerializes=xla_rematerializes
        )

    def _placed(self, target: str | None, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if target is None:
            return args, kwargs
        given = without_static(self.jitted, args, kwargs)
        if absent_devices.lie_on_mesh(target, given):
            return args, kwargs
        device = absent_devices.named_device(target)
        return map_dynamic(
            self.jitted, lambda tree: absent_devices.placed(tree, device), args, kwargs
        )

    def check(self, args: tuple, kwargs: dict) -> Check:
        """The results of the planned step compared with those of the step as written."""
        fitted = self.fitted(args, kwargs)

        def run(step: Callable) -> Any:
            copies = map_dynamic(self.jitted, _copied, args, kwargs)
            return step(*copies[0], **copies[1])

        return check_results(
            lambda: run(self.jitted), lambda: run(self), is_unmodified=fitted.is_unmodified
        )

    def lower(self, args: tuple, kwargs: dict) -> jax.stages.Lowered:
        return self.fitted(args, kwargs).jitted.lower(*args, **kwargs)

    def trace(self, args: tuple, kwargs: dict) -> jax.stages.Traced:
        return self.fitted(args, kwargs).jitted.trace(*args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all plans."""
        with self._lock:
            self._fitted.clear()
            self._transformed.clear()
            self._dispatch = _compat_jit.dispatcher(self.jitted, self._miss)

    def arena_stats(self) -> ArenaStats:
        """The copies of the last call into and out of its arena.

        Raises:
            RuntimeError: if there was no call.
        """
        called = self._last_called
        if called is None:
            raise RuntimeError("`arena_stats()` tells of a call. Call the step first.")
        return called.arena_stats()

    def release_arenas(self) -> None:
        """Free the memory of arenas that are kept for later calls."""
        with self._lock:
            fitted_steps = list(self._fitted.values())
        for fitted in fitted_steps:
            if isinstance(fitted.compiled, StepWithArena):
                fitted.compiled.release()

    def _log(self, line: str) -> None:
        if self._settings.verbose:
            print(f"[coop_jax] {line}", file=sys.stderr, flush=True)


def _copied(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.copy() if hasattr(leaf, "copy") else leaf, tree)
