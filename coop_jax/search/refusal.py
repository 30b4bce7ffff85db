"""Refusal: the error for a budget that cannot be kept, with one that can and the reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.least_possible import Blocking, Least, blocking_at, least_possible
from coop_jax.search.problem import Problem


class Refusals:
    """The errors for budgets of a step that cannot be kept."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        assert problem.least_fixed_bytes is not None, "`Problem` sets it"
        self._fixed_bytes = problem.least_fixed_bytes

    @functools.cached_property
    def least(self) -> Least:
        """The bytes that no plan can go below, with the operation that needs them."""
        return self._least_of(self._problem.least_graphs or self._problem.graphs)

    @functools.cached_property
    def least_pool_bytes(self) -> int:
        """The least pool of a plan that stores what XLA does of the step as written."""
        return self._least_of(self._problem.graphs).bytes - self._fixed_bytes

    def _least_of(self, graphs: Sequence[StepGraph]) -> Least:
        problem = self._problem
        # VMEM, which is not counted and which XLA may use instead of main memory.
        has_near = problem.placement.backend.has_second_memory
        near_bytes = problem.graphs[0].target.near_bytes if has_near else 0
        return least_possible(graphs, problem.options, self._fixed_bytes, near_bytes)

    def at_once(
        self, budget_bytes: int, find_needed: Callable[[], int]
    ) -> InfeasibleBudgetError:
        """The error for a budget below the bytes that no plan can go below.

        Arguments:
            budget_bytes: the budget.
            find_needed: returns the bytes that the smallest compiled step needs; called
                when the error's `smallest_bytes` is first read.
        """
        unmodified_bytes = self._problem.unmodified_bytes
        if unmodified_bytes is not None and self.least.bytes >= unmodified_bytes:
            return self._error(budget_bytes, unmodified_bytes, self.least.blocking)
        return self._error(
            budget_bytes, lambda: self._works(find_needed()), self.least.blocking
        )

    def after_plans(
        self, budget_bytes: int, needed_bytes: int, *, is_predicted: bool
    ) -> InfeasibleBudgetError:
        """The error for a budget that the smallest of a step's plans does not keep.

        Arguments:
            budget_bytes: the budget.
            needed_bytes: the bytes that the smallest plan needs.
            is_predicted: whether these are a prediction, as it was not compiled.
        """
        blocking = self.least.blocking
        if self._problem.graphs[0].operations:
            graph, smallest = self._problem.smallest_of(self._problem.graphs)
            blocking = blocking_at(graph, smallest.blocking_operation, smallest.pool_bytes)
        return self._error(
            budget_bytes, self._works(needed_bytes), blocking, is_predicted=is_predicted
        )

    def _works(self, needed_bytes: int) -> int:
        """The smallest budget that is kept, in bytes, where the smallest plan needs
        `needed_bytes`."""
        needed_bytes = max(needed_bytes, self.least.bytes)
        if self._problem.unmodified_bytes is None:
            return needed_bytes
        return min(needed_bytes, self._problem.unmodified_bytes)

    def _error(
        self,
        budget_bytes: int,
        smallest_bytes: int | Callable[[], int],
        blocking: Blocking,
        *,
        is_predicted: bool = False,
    ) -> InfeasibleBudgetError:
        """The error with a budget that works, which is found when it is asked for."""
        return InfeasibleBudgetError(
            budget_bytes,
            smallest_bytes,
            blocking.operation,
            least_bytes=self.least.bytes,
            unmodified_bytes=self._problem.unmodified_bytes,
            advice=blocking.advice,
            is_predicted=is_predicted,
            caller=self._problem.caller,
        )
