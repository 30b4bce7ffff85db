"""Predicted: the rewritten step from a prediction alone, where nothing can be compiled."""

from __future__ import annotations

import warnings

from coop_jax.base import _compat
from coop_jax.base.budget import format_bytes, resolve_budget
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.compile.as_written import predicted_fixed_bytes
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph.stored_values import from_rules
from coop_jax.plan.planner import PlanOptions, needed_bytes, planner_options, unconstrained
from coop_jax.search.candidates import LEAST_STEP
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.graphs import graphs_of
from coop_jax.search.placements import XLA_PLACES
from coop_jax.search.problem import Problem
from coop_jax.targets import target_of
from coop_jax.trace.program import Program


def predict_step(
    traced: TracedStep,
    budget: int | str,
    planner: str | PlanOptions,
    caller: str = "remat_train_step",
) -> Program:
    """The rewritten step, from the prediction alone.

    For tracing under an outer transformation, where nothing can be compiled. XLA places
    the tensors: an arena can be neither batched nor differentiated. Where no plan fits by
    the prediction, there is a warning, and the plan is the tightest; where that is not
    expected to help noticeably, the step stays as written.

    Arguments:
        traced: the step.
        budget: as of `remat_train_step`, checked.
        planner: as of `remat_train_step`.
        caller: the function that errors and warnings name.

    Raises:
        InfeasibleBudgetError: if the budget is a number of bytes and less than arguments
            and results take.
    """
    device = _compat.default_device()
    target = target_of(device)
    options = planner_options(planner, target.alignment_bytes)
    program = traced.program
    graphs = graphs_of(program, from_rules(program), target, options)
    fixed_bytes = predicted_fixed_bytes(program)
    unmodified = needed_bytes(unconstrained(graphs[0], options), options) + fixed_bytes
    budget_bytes = resolve_budget(budget, unmodified, device, caller)
    if unmodified <= budget_bytes:
        return program
    problem = Problem(
        graphs,
        options,
        fixed_bytes,
        XLA_PLACES.placement(traced),
        traced.compile,
        lambda line: None,
        unmodified_bytes=unmodified,
        caller=caller,
    )
    search = BudgetSearch(problem)
    try:
        candidate = search.predict(budget_bytes)
    except InfeasibleBudgetError as error:
        # Arguments and results are certain; the rest may be mispredicted either way, and
        # nothing here can find out. A percentage is one of a prediction.
        if isinstance(budget, int) and budget_bytes < fixed_bytes:
            raise
        helps = unmodified - error.smallest_bytes > unmodified // LEAST_STEP
        done = "It recomputes all that helps" if helps else "It stays as written"
        warnings.warn(
            f"A step made by `{caller}` is called inside of a transformation such as "
            "`jax.jit` or `jax.grad`, where its bytes can only be predicted: "
            f"{format_bytes(error.smallest_bytes)} at least, of a budget of "
            f"{format_bytes(budget_bytes)}. {done}. To have it planned by what XLA stores "
            "and the budget verified, call it outside, with the whole step inside of it.",
            stacklevel=2,
        )
        if not helps:
            return program
        candidate = search.predict(error.smallest_bytes)
    return candidate.realized.program
