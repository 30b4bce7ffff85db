"""Fit saved: the step of a plan file, in the place of a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from coop_jax.base.budget import format_bytes, resolve_budget
from coop_jax.compile.as_written import compile_tagged
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.inside_readers import made_again
from coop_jax.fitted_step import FittedStep, end_books_with, with_planned_loops
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import (
    Plan,
    planned_plan,
    unmodified_plan,
    with_work_again,
    with_work_inside_readers,
)
from coop_jax.saved.recipe import PlanFile, Rebuilt, SavedRecipe
from coop_jax.saved.subject import Subject
from coop_jax.search.candidates import Measured
from coop_jax.search.placements import XLA_PLACES, Placing
from coop_jax.targets import target_of
from coop_jax.trace.costs import flops
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured


def fit_saved(
    traced: TracedStep,
    budget: int | str,
    planner: str | PlanOptions,
    log: Callable[[str], None],
    file: PlanFile,
    placing: Placing = XLA_PLACES,
    caller: str = "remat_train_step",
) -> FittedStep:
    """The step of a plan file: nothing is planned, and one executable compiled; for some
    plans for TPUs, one more to be read (`saved.straight_line.check_halved`).

    Arguments:
        file: the plan file; a percentage as a budget refers to its figure of the step as
            written. Others as of `fit_step`.

    Raises:
        PlanFileError: the file is of another step or no plan, or XLA needs more than the
            budget for its step.
    """
    subject = Subject.of(traced, planner, placing)
    made = file.plan_of(subject, caller)
    device, unmodified_bytes = traced.device(), made.figures["unmodified_bytes"]
    budget_bytes = resolve_budget(budget, unmodified_bytes, device, caller)
    program, num_before = made.program, traced.num_compilations
    log(f"plan of {file.path}, made with jax {file.made_with}")
    file.check_halved(made, lambda program: _stored_values(traced, program), caller)
    compiled, total_bytes = compile_measured(
        lambda: (
            traced.compile_lowered(traced.lower_as_written())
            if program is None
            else traced.compile(program)
        )
    )
    if compiled is None or total_bytes > budget_bytes:
        raise file.over_budget(
            format_bytes(total_bytes), format_bytes(budget_bytes), caller
        )
    end_books_with(compiled, placing)
    plan = _plan_of_file(traced, made, compiled, budget_bytes, total_bytes)
    plan = dataclasses.replace(
        plan,
        num_compilations=max(1, traced.num_compilations - num_before),
        recipe=SavedRecipe(file.text),
    )
    jitted = traced.jitted if program is None else traced.jit(program)
    return FittedStep(compiled, jitted, plan, made.candidate, placing.exchange_log)


def _stored_values(traced: TracedStep, program: Program) -> StoredValues:
    """What XLA stores of a program that replaces the step."""
    tagged = compile_tagged(dataclasses.replace(traced, program=program))
    if tagged is None:
        return from_rules(program)
    return traced.backend.stored_values(program, tagged)


def _plan_of_file(
    traced: TracedStep, made: Rebuilt, compiled: Any, budget_bytes: int, total_bytes: int
) -> Plan:
    """The report of a plan file's step."""
    device, unmodified_bytes = traced.device(), made.figures["unmodified_bytes"]
    step, again = traced.program, made.branches_again
    if again is not None:
        traced = dataclasses.replace(traced, program=again[0])
    if made.candidate is not None:
        measured = Measured(made.candidate, compiled, total_bytes)
        plan = planned_plan(
            device, budget_bytes, unmodified_bytes, 1, measured, traced.num_devices()
        )
    else:
        total_flops = sum(map(flops, traced.program.eqns))
        plan = unmodified_plan(
            device,
            budget_bytes,
            unmodified_bytes,
            1,
            total_flops,
            traced.num_devices(),
        )
        plan = dataclasses.replace(
            plan,
            predicted_bytes=made.figures["predicted_bytes"],
            measured_bytes=total_bytes,
        )
    if made.inside is not None:
        inside = made_again(traced.program, made.inside)
        plan = with_work_inside_readers(plan, traced.program, inside, target_of(device))
    if made.loops is not None:
        plan = with_planned_loops(plan, traced, made.loops)
    return (
        plan if again is None else with_work_again(plan, step, again[1], target_of(device))
    )
