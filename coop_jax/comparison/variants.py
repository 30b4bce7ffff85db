"""Variants of one step: unmodified, under a policy, under a budget; each as a `Row`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from coop_jax.api.train_step import remat_train_step
from coop_jax.base.budget import check_budget, format_bytes
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.comparison.checkpoint_policies import Policy, Wrap, unwrapped, wrap_with
from coop_jax.comparison.recompute_counts import (
    Executed,
    executed,
    has_barriers_in_loops,
    recomputes,
    saved_names,
)
from coop_jax.comparison.table import Row
from coop_jax.comparison.time_model import TimeModel
from coop_jax.compile.as_written import (
    AsWritten,
    compile_both,
    predicted_fixed_bytes,
    unplanned_bytes,
)
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep
from coop_jax.graph.stored_values import from_rules, tag
from coop_jax.pipeline import fit_smallest, fit_step
from coop_jax.plan.planner import planner_options
from coop_jax.searches import seconds_for_temporaries
from coop_jax.targets import target_of
from coop_jax.trace.kernels import kernel_flops
from coop_jax.trace.program import Program
from coop_jax.trace.replacements import original
from coop_jax.xla.executable_seconds import executable_work
from coop_jax.xla.memory_figures import compile_measured, compile_to_read, memory_figures

_TIMED_PAIRS = 7
# XLA:TPU gives the bytes that such a step would need, and does not compile it.
REFUSED = "refused by XLA: more than the device has"


class Versions:
    """The rows of a comparison; the parts that they share are made once, when needed.

    Arguments:
        make_step: `make_step(wrap)` returns the step with its blocks wrapped.
        args: the step's arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s.
        donate_argnums: as in `jax.jit`.
        planner: as in `remat_train_step`; None for its default.
        measures_seconds: run the steps in turns with the unmodified one.
        verbose: print a line to stderr for every compilation.
        on_executable: called with the name and the executable of every row that has one of
            its own: policies may make the same program.
    """

    def __init__(
        self,
        make_step: Callable[[Wrap], Callable],
        args: tuple,
        donate_argnums: tuple[int, ...],
        planner: Any,
        measures_seconds: bool,
        verbose: bool,
        on_executable: Callable[[str, Any], None] | None = None,
    ) -> None:
        self._make_step = make_step
        self._args = args
        self._donate_argnums = donate_argnums
        if planner is None:
            planner = inspect.signature(remat_train_step).parameters["planner"].default
        self._planner = planner
        self._measures_seconds = measures_seconds
        self._verbose = verbose
        self._on_executable = on_executable
        self._by_program: dict[str, Row] = {}
        self._traced = TracedStep.trace(
            self._step(unwrapped),
            {"donate_argnums": donate_argnums},
            args,
            {},
        )
        self.device = self._traced.device()
        self.num_devices = self._traced.num_devices()
        self.backend = self._traced.backend

    @property
    def names(self) -> frozenset[str]:
        """The names that `checkpoint_name` gave to values of the step."""
        return saved_names(self._jitted(unwrapped).trace(*self._args).jaxpr)

    def unmodified(self) -> Row:
        compiled, measured_bytes, *_ = self._compiled_both
        return Row(
            name="unmodified",
            kind="unmodified",
            predicted_bytes=self._predicted_unmodified(),
            measured_bytes=measured_bytes,
            flops=self._executed_unmodified.flops,
            modelled_seconds=self._time_model.seconds(self._executed_unmodified),
            measured_ratio=1.0 if self._measures_seconds else None,
            note=_refusal(compiled),
            **self._executed_by("unmodified", compiled),
        )

    def checkpoint(self, name: str, policy: Policy) -> Row:
        """The row of the step with its blocks under a `jax.checkpoint` policy.

        Raises:
            ValueError: if the step holds no differentiated `jax.checkpoint`.
        """
        self._log(f"jax.checkpoint, {name}")
        traced = self._jitted(wrap_with(policy)).trace(*self._args)
        if not recomputes(traced.jaxpr):
            raise ValueError(
                "`compare(make_step, ...)`: the step of `make_step(wrap)` must call "
                f"blocks that `wrap` was applied to. With policy {name!r} it holds no "
                "`jax.checkpoint` that is differentiated. Wrap what should be "
                "recomputed, e.g. `block = wrap(block)`, before taking gradients."
            )
        lowered = traced.lower()
        text = lowered.as_text()
        if text in self._by_program:  # a policy's names may not occur: same program
            return dataclasses.replace(self._by_program[text], name=name)
        step = executed(traced.jaxpr, self._donated)
        in_loops = has_barriers_in_loops(traced.jaxpr)
        options = dict(
            self.backend.checkpoint_in_loops_options
            if in_loops
            else self.backend.checkpoint_options
        )
        compiled, measured_bytes = compile_measured(
            lambda: self._traced.compile_lowered(lowered, options)
        )
        row = Row(
            name=name,
            kind="checkpoint",
            measured_bytes=measured_bytes,
            flops=step.flops,
            modelled_seconds=self._time_model.seconds(step),
            measured_ratio=self._measured_ratio(compiled),
            note=_refusal(compiled),
            **self._executed_by(name, compiled),
        )
        self._by_program[text] = row
        return row

    def checkpoint_by_default(self, name: str, policy: Policy) -> Row:
        """The row of the same step as XLA:CPU compiles it with its default options.

        Recomputations that XLA merges back are not visible in the jaxpr, so operations
        are not counted.
        """
        self._log(f"jax.checkpoint, {name}")
        compiled = self._jitted(wrap_with(policy)).lower(*self._args).compile()
        return Row(
            name=name,
            kind="checkpoint",
            measured_bytes=memory_figures(compiled).total_bytes,
            measured_ratio=self._measured_ratio(compiled),
            note="without xla_disable_hlo_passes=cse_barrier_expander",
            **self._executed_by(name, compiled),
        )

    def planned(self, name: str, budget: int | str) -> Row:
        """The row of the step under a budget, without bytes if that is infeasible."""
        self._log(f"{name}: {budget if isinstance(budget, str) else format_bytes(budget)}")
        try:
            fitted = fit_step(
                self._traced,
                check_budget(budget),
                self._planner,
                self._log,
                self._compiled_both,
            )
        except InfeasibleBudgetError as error:
            return Row(
                name=name,
                kind="coop_jax",
                budget_bytes=error.budget_bytes,
                num_compilations=0,
                note=f"infeasible, at least {format_bytes(error.smallest_bytes)}",
            )
        return self._row(name, fitted)

    def smallest(self, name: str) -> Row:
        """The row of the step at the smallest budget that works."""
        self._log(name)
        return self._row(
            name,
            fit_smallest(self._traced, self._planner, self._log, self._compiled_both),
        )

    def _row(self, name: str, fitted: FittedStep) -> Row:
        """The row of a version, with its recomputations counted."""
        plan = fitted.plan
        counted = executed(fitted.jitted.trace(*self._args).jaxpr, self._donated)
        return Row(
            name=name,
            kind="coop_jax",
            budget_bytes=plan.budget_bytes,
            predicted_bytes=plan.predicted_bytes,
            measured_bytes=plan.measured_bytes,
            flops=counted.flops,
            modelled_seconds=self._time_model.seconds(counted),
            measured_ratio=self._measured_ratio(fitted.compiled),
            num_compilations=plan.num_compilations,
            **self._executed_by(name, fitted.compiled),
        )

    def _executed_by(self, name: str, compiled: Any) -> dict[str, Any]:
        """The figures of a row that its executable gives, if there is one."""
        if compiled is not None and self._on_executable is not None:
            self._on_executable(name, compiled)
        work = compiled and executable_work(
            compiled, target_of(self.device), kernel_flops(self._traced.program)
        )
        if not work:
            return {}
        seconds = work.seconds + seconds_for_temporaries(self._traced, compiled)
        return {"product_flops": work.product_flops, "executable_seconds": seconds}

    def _predicted_unmodified(self) -> int:
        """Bytes that the step as written is expected to need."""
        target, backend = target_of(self.device), self.backend
        program, tagged = self._traced.program, self._compiled_both[2]
        if tagged is None:
            stored = from_rules(program)
            fixed_bytes = predicted_fixed_bytes(program)
        else:
            stored = backend.stored_values(program, tagged)
            fixed_bytes = unplanned_bytes(tagged, stored)
        options = planner_options("search", target.alignment_bytes)
        return fixed_bytes + backend.expected_bytes_as_written(
            program, stored, target, options, tagged
        )

    def _step(self, wrap: Wrap) -> Callable:
        step = self._make_step(wrap)
        if not callable(step):
            raise TypeError(
                "`compare(make_step, ...)`: `make_step(wrap)` must return the training "
                f"step, a callable. Got {step!r} of type {type(step).__name__}."
            )
        return step

    def _jitted(self, wrap: Wrap) -> Any:
        return jax.jit(self._step(wrap), donate_argnums=self._donate_argnums)

    @property
    def _donated(self) -> tuple[bool, ...]:
        return self._traced.program.donated

    @functools.cached_property
    def _compiled_both(self) -> AsWritten:
        self._log("unmodified, and what XLA stores of it")
        return compile_both(self._traced)

    @functools.cached_property
    def _executed_unmodified(self) -> Executed:
        return executed(self._jitted(unwrapped).trace(*self._args).jaxpr, self._donated)

    @functools.cached_property
    def _time_model(self) -> TimeModel:
        return TimeModel(
            self._executed_unmodified, self._compile_tagged, target_of(self.device)
        )

    def _compile_tagged(self, program: Program) -> Any:
        if program is self._executed_unmodified.program and self._is_as_traced(program):
            return self._compiled_both[2]
        self._log("what XLA stores")
        tagged = self._traced.lower(tag(program))
        return compile_to_read(lambda: self._traced.compile_afresh(tagged))

    def _is_as_traced(self, program: Program) -> bool:
        """Whether it is, apart from names, the program whose stored values were read."""
        ours, traced = program.eqns, self._traced.program.eqns
        return [e.primitive for e in ours] == [original(e).primitive for e in traced]

    def _measured_ratio(self, step: Callable) -> float | None:
        """Median time of the step relative to the unmodified one, in turns with it."""
        if not self._measures_seconds:
            return None
        seconds: tuple[list[float], list[float]] = ([], [])
        pair = (step, self._compiled_both[0])
        for turn in range(1 + _TIMED_PAIRS):
            for which in (0, 1) if turn % 2 else (1, 0):
                elapsed = self._run(pair[which])
                if turn:  # the first turn touches fresh memory
                    seconds[which].append(elapsed)
        return statistics.median(seconds[0]) / statistics.median(seconds[1])

    def _run(self, step: Callable) -> float:
        """Seconds of one call, with its results waited for."""
        args = [
            jax.tree.map(lambda leaf: leaf.copy(), arg)
            if i in self._donate_argnums
            else arg
            for i, arg in enumerate(self._args)
        ]
        jax.block_until_ready(args)
        start = time.perf_counter()
        jax.block_until_ready(step(*args))
        return time.perf_counter() - start

    def _log(self, line: str) -> None:
        if self._verbose:
            print(f"[coop_jax.compare] {line}", file=sys.stderr, flush=True)


def _refusal(compiled: Any) -> str:
    return REFUSED if compiled is None else ""
