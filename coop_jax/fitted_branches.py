"""Fitted branches: the step whose gradients run branches again (`loops.branches_again`).

A step whose plan runs `cond`s again, and one with `cond`s that no plan keeps a budget for,
is planned once more with their residuals inside of the gradients' branches; the faster
executable is taken. Not every step with `cond`s: in this form each of their branches runs
twice, whatever the budget is.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from coop_jax.compile.as_written import AsWritten, compile_tagged
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep, saveable
from coop_jax.loops.branches_again import with_residuals_inside
from coop_jax.plan.planner import PlanOptions, planner_options
from coop_jax.report import Plan, with_work_again
from coop_jax.saved.recipe import Recipe
from coop_jax.saved.subject import Subject
from coop_jax.searches import seconds_on_device
from coop_jax.targets import target_of
from coop_jax.xla.memory_figures import memory_figures


class BranchesAgain(NamedTuple):
    """A step whose gradients run branches again.

    Attributes:
        traced: that step.
        eqns: the `cond`s that run again, each as often as it runs.
        subject: the step as written.
    """

    traced: TracedStep
    eqns: list[Any]
    subject: Subject

    @staticmethod
    def of(
        traced: TracedStep, planner: str | PlanOptions, subject: Subject
    ) -> BranchesAgain | None:
        """That of a step; None where it has no such branches, or the planner is one of the
        paper's baselines, which know no branches.

        Arguments:
            subject: the step, with the placement of its planned tensors.
        """
        target = target_of(traced.device())
        if planner_options(planner, target.alignment_bytes).policy != "search":
            return None
        program, eqns = with_residuals_inside(traced.program)
        if not eqns:
            return None
        return BranchesAgain(dataclasses.replace(traced, program=program), eqns, subject)

    def compiled(self, unmodified_bytes: int) -> AsWritten:
        """The tagged program of this step, compiled.

        Arguments:
            unmodified_bytes: XLA's figure for the step as written, for this one as well
                where XLA refuses it.
        """
        tagged = compile_tagged(self.traced)
        known = unmodified_bytes if tagged is None else memory_figures(tagged).total_bytes
        return AsWritten(None, known, tagged)

    def is_faster(self, fitted: FittedStep, other: FittedStep) -> bool:
        """Whether a plan of this step is faster than one of the step as written, by their
        executables, or where their seconds are not known as modelled."""
        seconds_of = seconds_on_device(self.traced)
        own, others = seconds_of(fitted.compiled), seconds_of(other.compiled)
        if own is None or others is None:
            return fitted.plan.compute_overhead < other.plan.compute_overhead
        return own < others

    def reported(self, fitted: FittedStep, unmodified_bytes: int) -> FittedStep:
        """A plan of this step as one of the step as written.

        Arguments:
            unmodified_bytes: XLA's figure for the step as written.
        """
        traced, plan = self.traced, fitted.plan
        plan = with_work_again(
            plan, self.subject.program, self.eqns, target_of(traced.device())
        )
        plan = dataclasses.replace(plan, unmodified_bytes=unmodified_bytes)
        assert isinstance(plan.recipe, Recipe), "it was planned now"
        recipe = dataclasses.replace(
            plan.recipe, subject=self.subject, branches_again=traced.program
        )
        return saveable(dataclasses.replace(fitted, plan=plan), recipe)


def runs_conds_again(plan: Plan) -> bool:
    """Whether a straight line of a plan runs a `cond` again."""
    lines = [plan.recomputations, *(loop.recomputations for loop in plan.loops)]
    return any(item.primitive == "cond" for line in lines for item in line)
