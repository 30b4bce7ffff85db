"""Fit: the plan of a step for a device, present or absent, without running it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coop_jax.api.train_step import RematTrainStep, remat_train_step
from coop_jax.base.budget import check_budget
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import Plan
from coop_jax.saved.recipe import PlanFile


def fit(
    fn: Callable,
    *args: Any,
    target: str | None = None,
    budget: int | str = "device",
    planner: str | PlanOptions = "search",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    compiler_options: dict[str, Any] | None = None,
    plan: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    **kwargs: Any,
) -> Plan:
    """The plan with which a training step fits on a device, present or absent.

    XLA compiles the step for the target, and its own figure decides whether the step fits.
    Nothing is run and no array is made::

        print(coop_jax.fit(train_step, state, batch, target="h200", donate_argnums=0))

    A GPU needs `jax[cuda13]` to be installed and a TPU `jax[tpu]`; neither needs the
    device. JAX keeps three quarters of a GPU's memory for itself by default, so a step
    planned to its full memory runs there with `XLA_CLIENT_MEM_FRACTION=.95`.

    Arguments:
        fn: the step, as for `remat_train_step`; plain or already jitted.
        *args, **kwargs: its arguments: pytrees of arrays or `jax.ShapeDtypeStruct`s
            (of `jax.eval_shape`), which keep their shapes and types. Pass arguments by
            position that are named like one below.
        target: a name of `coop_jax.targets.names()`, such as `"h200"`, `"tpu v5e"` or
            `"cpu"`; None for the devices that the arguments are on, as on a mesh of
            `coop_jax.targets.mesh`: then all bytes are those of one device.
        budget: as for `remat_train_step`; `"device"`, the target's memory less 5 %.
            A CPU reports no memory: give bytes there.
        planner, static_argnums, static_argnames, donate_argnums, donate_argnames,
            keep_unused, compiler_options, plan, verbose: as for `remat_train_step`.

    Returns:
        The plan: `is_unmodified` if the step fits as written; else the recomputed
        operations and their FLOPs. `measured_bytes` is XLA's figure, never above
        `budget_bytes`.

    Raises:
        InfeasibleBudgetError: if no plan fits; it names the smallest budget that does.
        PlanFileError: if the plan file cannot be used.
        TypeError: if `fn` was made by `remat_train_step`, which has `.plan(target=...)`.
        ValueError: if the target is not in the table, or the arguments are sharded over
            other devices.
        ImportError: if XLA's compiler for the target is not installed; the message names
            the package that has it.
        RuntimeError: if that compiler cannot be used in this process; the message says
            how it can.
    """
    if isinstance(fn, RematTrainStep):
        raise TypeError(
            "`fit(fn, ...)` must be given the step as written. Got one made by "
            f"`remat_train_step`, {fn!r}: call its `.plan(*args, target=...)`."
        )
    if plan is not None:
        PlanFile.read(plan, "fit")  # Its faults are those of `fit`.
    step = remat_train_step(
        fn,
        budget=check_budget(budget, "fit"),
        planner=planner,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        keep_unused=keep_unused,
        compiler_options=compiler_options,
        plan=plan,
        verbose=verbose,
    )
    return step.called_by("fit").plan_for(target, args, kwargs)
