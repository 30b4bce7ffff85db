"""Errors that a user of the package can meet."""

from __future__ import annotations

from coop_jax.budget import format_bytes


class InfeasibleBudgetError(ValueError):
    """No plan was found whose compiled step fits the budget.

    Attributes:
        budget_bytes: what was asked for.
        smallest_bytes: the smallest budget that works: XLA's own figure of a step that
            was compiled, or a prediction where nothing can be compiled.
        operation: the operation that forbids less, with its source line.
    """

    def __init__(
        self, budget_bytes: int, smallest_bytes: int, operation: str, predicted: bool
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_bytes = smallest_bytes
        self.operation = operation
        how = "by prediction" if predicted else "as compiled by XLA"
        super().__init__(
            f"`remat_train_step(budget=...)` must be at least {smallest_bytes} bytes "
            f"({format_bytes(smallest_bytes)}, {how}) for this step: the operation that "
            f"forbids less is {operation}. Got {budget_bytes} bytes "
            f"({format_bytes(budget_bytes)}). Raise the budget to that figure, reduce the "
            "batch, or donate arguments that the step replaces (`donate_argnums`)."
        )
