"""Sized step: the step of one size, and the bytes of its smallest plan.

Three figures, each dearer than the one before: by rules, without a compilation; by the
planner, from the stored values of the tagged program, which is one compilation; and by XLA,
of the tightest plans that a budget is refused by. What is compiled for one of them serves
the next, and the plan itself. Of a step with loops the second is left out: the smallest
plans of loops, of their bodies and of the line around them are known when all are compiled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coop_jax import _ext
from coop_jax.base import _compat_jit
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.compile.as_written import AsWritten, compile_tagged, predicted_fixed_bytes
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.loops.bodies import bodies_of, has_bodies
from coop_jax.loops.branches_again import with_residuals_inside
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.pipeline import fit_step
from coop_jax.plan.planner import PlanOptions, planner_options
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.placements import XLA_PLACES
from coop_jax.searches import loop_search_of, problem_of
from coop_jax.targets import Target, target_of
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured, memory_figures


class Estimate(NamedTuple):
    """Bytes of a step's smallest plan before any compilation.

    Attributes:
        fixed_bytes: of arguments and results.
        pool_bytes: a lower bound of what else is alive at once, which grows with the size
            as XLA's figure does.
    """

    fixed_bytes: int
    pool_bytes: int


class SizedStep:
    """The step of one size.

    Attributes:
        bytes: the bytes that its smallest plan needs, as far as they are known: the
            planner's expectation, or XLA's figure; None before any compilation.
        is_measured: whether they are XLA's figure.

    Arguments:
        traced: the step.
        planner, caller: as of `fit_step`.
        log: receives a line for every compilation.
    """

    def __init__(
        self,
        traced: TracedStep,
        planner: str | PlanOptions,
        log: Callable[[str], None],
        caller: str,
    ) -> None:
        self.bytes: int | None = None
        self.is_measured = False
        self._traced = traced
        self._planner = planner
        self._log = log
        self._caller = caller
        self._tagged = None
        self._search: BudgetSearch | None = None
        self._fitted: FittedStep | None = None
        self._refusal: InfeasibleBudgetError | None = None
        self._is_read = False

    @property
    def num_compilations(self) -> int:
        """Compilations by XLA so far."""
        return self._traced.num_compilations

    @functools.cached_property
    def is_looped(self) -> bool:
        """Whether it has loops to plan, by rules, or gradients that may run branches
        again: `fit` alone knows what it needs then."""
        if self._residuals_inside[1]:
            return True
        loops = loop_search_of(
            *(self._traced, self._planner, self._bytes_as_written(), self._log),
            by_rules=True,
        )
        return loops is not None

    @functools.cached_property
    def _residuals_inside(self) -> tuple[Program, list[Any]]:
        """As of `with_residuals_inside`."""
        return with_residuals_inside(self._traced.program)

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The bytes of its smallest plan by rules, its loops at the ends of their path; on
        several devices, of one of them if all were divided."""
        traced = self._traced
        target = target_of(traced.device())
        options = planner_options(self._planner, target.alignment_bytes)
        programs = [traced.program]
        if options.policy == "search":
            forms = dict.fromkeys([traced.program, self._residuals_inside[0]])
            programs = [end for form in forms for end in _ends_of_loops(form, target)]
        pool_bytes = min(
            _least_pool_bytes(program, target, options.alignment) for program in programs
        )
        return Estimate(_fixed_bytes(traced), pool_bytes // traced.num_shards())

    def read(self) -> None:
        """Compile what shows the bytes of its smallest plan: the tagged program. Nothing of
        a step with loops."""
        if self._is_read or self.is_looped:
            return
        self._is_read = True
        self._log("its stored values")
        self._tagged = compile_tagged(self._traced)
        problem = problem_of(
            *(self._traced, self._planner, self._log, self._tagged, XLA_PLACES),
            caller=self._caller,
        )
        self._search = BudgetSearch(problem)
        graph, smallest = problem.smallest_of(problem.graphs)
        expected_bytes = problem.planned_bytes(graph, smallest.schedule)
        self._know(min(expected_bytes, self._tagged_bytes()), is_measured=False)

    def keeps(self, budget_bytes: int, *, is_expected: bool) -> bool:
        """Whether its smallest plans keep a budget, as those compiled show by which `fit`
        would refuse it; of a step with loops, whether `fit` has a plan.

        Arguments:
            is_expected: whether other sizes show that it does: then the plan that `fit`
                takes is compiled, and the smallest only if that does not keep the budget.
        """
        self.read()
        if self._search is None or self._tagged_bytes() <= budget_bytes:
            return self._is_fitted(budget_bytes)
        if self._search.is_refused_at_once(budget_bytes):
            return False
        if is_expected and self._search.expected(budget_bytes) is not None:
            return True
        found = self._search.probe(budget_bytes)
        self._know(found.total_bytes, is_measured=True)
        return found.keeps(budget_bytes)

    def fit(self, budget_bytes: int) -> FittedStep:
        """The step of `fit_step`: the same plan as if nothing had been compiled before.

        Raises:
            InfeasibleBudgetError: if no plan fits.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._fitted is None:
            traced, as_written = self._traced, None
            if self._search is not None:
                compiled, total_bytes = compile_measured(
                    lambda: traced.compile_lowered(traced.lower_as_written())
                )
                as_written = AsWritten(compiled, total_bytes, self._tagged)
            self._fitted = fit_step(
                *(traced, budget_bytes, self._planner, self._log, as_written),
                caller=self._caller,
                begun=self._search,
            )
        return self._fitted

    def _is_fitted(self, budget_bytes: int) -> bool:
        """Whether it has a plan that keeps a budget, which is made."""
        try:
            self.fit(budget_bytes)
        except InfeasibleBudgetError as error:
            self._refusal = error
            self._know(error.smallest_bytes, is_measured=True)
            return False
        return True

    def _know(self, count: int, *, is_measured: bool) -> None:
        self.bytes, self.is_measured = count, is_measured

    def _bytes_as_written(self) -> int:
        """Bytes of the step as written, by rules."""
        traced = self._traced
        target = target_of(traced.device())
        pool_bytes = _least_pool_bytes(traced.program, target, target.alignment_bytes)
        return self.estimate.fixed_bytes + pool_bytes // traced.num_shards()

    def _tagged_bytes(self) -> int:
        if self._tagged is None:  # XLA refuses it, and says nothing else.
            return self._bytes_as_written()
        return memory_figures(self._tagged).total_bytes


def _ends_of_loops(program: Program, target: Target) -> Iterator[Program]:
    """The program with the fewest bytes kept by its loops, without groups and with them."""
    yield from _ends_inside(with_broadcasts_inside(program), target)


def _ends_inside(program: Program, target: Target) -> Iterator[Program]:
    """The same of a program in which the pairs around its loops are planned."""
    menu = menu_of(program, target)
    if not menu.choices:
        yield program
        return
    for _, saved_bytes in menu.stretches:
        yield from _ends_inside(
            with_planned_pairs(program, menu.saving(saved_bytes)), target
        )


def _least_pool_bytes(program: Program, target: Target, alignment: int) -> int:
    """Bytes that no plan can go below by rules, those inside of loops included."""
    inside = {
        index: max(_least_pool_bytes(body, target, alignment) for body in bodies_of(eqn))
        for index, eqn in enumerate(program.eqns)
        if has_bodies(eqn)
    }
    graph = build_graph(program, from_rules(program).with_scratch(inside), target)
    return _ext.lower_bound(graph.core, alignment)[0]


def _fixed_bytes(traced: TracedStep) -> int:
    """Bytes of arguments and results on one device; on one of several, of arguments alone,
    as the shardings of results are XLA's."""
    if traced.num_devices() == 1:
        return predicted_fixed_bytes(traced.program)
    leaves = traced.leaves(traced.args, traced.kwargs)
    asked, _ = _compat_jit.leaf_shardings(traced.traced)
    return sum(map(_shard_bytes, leaves, asked))


def _shard_bytes(leaf: Any, asked: Any) -> int:
    aval = _compat_jit.abstract_value(leaf)
    sharding = asked or getattr(leaf, "sharding", None)
    if sharding is None:
        return aval_bytes(aval)
    return math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize
