"""Refusal: a budget that cannot be kept, what can be kept instead, and why not less."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.graph.step_graph import StepGraph
from coop_jax.plan.least_possible import Blocking, Least, blocking_at, least_possible
from coop_jax.plan.planner import PlanOptions, SmallestOf


class Refusals:
    """Makes the errors of a step's budgets.

    Arguments:
        graphs: the step's graph, in every order of operations that it may be planned in.
        options: of the planner.
        fixed_bytes: arguments and results.
        near_bytes: memory that is not counted and that XLA may use instead.
        unmodified_bytes: what the step as written needs; None if that is not known, or
            XLA refuses to compile it.
        caller: the function that the budget was given to.
        smallest_of: the smallest pool that can be planned in any of a step's orders.
    """

    def __init__(
        self,
        graphs: Sequence[StepGraph],
        options: PlanOptions,
        fixed_bytes: int,
        near_bytes: int,
        unmodified_bytes: int | None,
        caller: str,
        smallest_of: SmallestOf,
    ) -> None:
        self._graphs = tuple(graphs)
        self._options = options
        self._fixed_bytes = fixed_bytes
        self._near_bytes = near_bytes
        self._unmodified_bytes = unmodified_bytes
        self._caller = caller
        self._smallest_of = smallest_of

    @functools.cached_property
    def least(self) -> Least:
        """What no plan can go below."""
        return least_possible(
            self._graphs, self._options, self._fixed_bytes, self._near_bytes
        )

    @property
    def least_pool_bytes(self) -> int:
        return self.least.bytes - self._fixed_bytes

    def at_once(
        self, budget_bytes: int, find_needed: Callable[[], int]
    ) -> InfeasibleBudgetError:
        """Of a budget below what no plan can go below.

        Arguments:
            find_needed: finds what the smallest compiled step needs, in bytes.
        """
        unmodified_bytes = self._unmodified_bytes
        if unmodified_bytes is not None and self.least.bytes >= unmodified_bytes:
            return self._error(budget_bytes, unmodified_bytes, self.least.blocking)
        return self._error(
            budget_bytes, lambda: self._works(find_needed()), self.least.blocking
        )

    def after_plans(
        self, budget_bytes: int, needed_bytes: int, *, is_predicted: bool
    ) -> InfeasibleBudgetError:
        """Of a budget that the smallest of a step's plans does not keep.

        Arguments:
            needed_bytes: what that one needs.
            is_predicted: it was not compiled.
        """
        blocking = self.least.blocking
        if self._graphs[0].operations:
            graph, smallest = self._smallest_of(self._graphs)
            blocking = blocking_at(graph, smallest.blocking_operation, smallest.pool_bytes)
        return self._error(
            budget_bytes, self._works(needed_bytes), blocking, is_predicted=is_predicted
        )

    def _works(self, needed_bytes: int) -> int:
        """The smallest budget that is kept where the smallest plan needs so much."""
        needed_bytes = max(needed_bytes, self.least.bytes)
        if self._unmodified_bytes is None:
            return needed_bytes
        return min(needed_bytes, self._unmodified_bytes)

    def _error(
        self,
        budget_bytes: int,
        smallest_bytes: int | Callable[[], int],
        blocking: Blocking,
        *,
        is_predicted: bool = False,
    ) -> InfeasibleBudgetError:
        return InfeasibleBudgetError(
            budget_bytes,
            smallest_bytes,
            blocking.operation,
            least_bytes=self.least.bytes,
            unmodified_bytes=self._unmodified_bytes,
            advice=blocking.advice,
            is_predicted=is_predicted,
            caller=self._caller,
        )
