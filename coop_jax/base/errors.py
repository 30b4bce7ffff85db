"""Errors that a user of the package can meet."""

from __future__ import annotations

import functools
from collections.abc import Callable

from coop_jax.base.budget import budget_of, format_bytes


class InfeasibleBudgetError(ValueError):
    """No plan was found whose compiled step fits the budget.

    A budget that no plan can keep is refused before any plan is made. The message then has
    the bytes that no plan can go below and a budget that works; the smallest budget in
    between is found when `smallest_bytes` is first read: at most seven plans are
    compiled, and those of the step's loops.

    Attributes:
        budget_bytes: the budget that was given.
        smallest_bytes: the smallest budget that works, never more than the step needs as
            written: XLA's own figure of a step that was compiled, or a prediction where
            nothing can be compiled.
        operation: the operation that forbids less, with its source line; None where the
            arguments and results alone take so much.
    """

    def __init__(
        self,
        budget_bytes: int,
        smallest_bytes: int | Callable[[], int],
        operation: str | None,
        *,
        least_bytes: int = 0,
        unmodified_bytes: int | None = None,
        advice: str = "",
        is_predicted: bool = False,
        caller: str = "remat_train_step",
        compiles: str = "at most seven plans",
    ) -> None:
        """
        Arguments:
            smallest_bytes: the smallest budget that works, or a function that finds it.
            least_bytes: bytes that no plan can go below.
            unmodified_bytes: bytes that the step needs as written, or with its loops
                planned; None if that is too much to be compiled.
            advice: a sentence on the operation.
            is_predicted: `smallest_bytes` is a prediction: no compiled step needs it.
            caller: the function that the budget was given to.
            compiles: what a function that finds `smallest_bytes` compiles.
        """
        self.budget_bytes = budget_bytes
        self.operation = operation
        self._smallest = smallest_bytes
        self._others = least_bytes, unmodified_bytes, advice, is_predicted, caller, compiles
        if callable(smallest_bytes):
            needed_bytes, how = least_bytes, "which no plan can go below"
        else:
            needed_bytes = smallest_bytes
            how = "by prediction" if is_predicted else "as compiled by XLA"
        why = f"the operation that forbids less is {operation}"
        if operation is None:
            why = "its arguments and results alone take so much"
        raise_it = "Raise the budget to that figure"
        if callable(smallest_bytes):
            raise_it = _raise_between(unmodified_bytes, compiles)
        super().__init__(
            f"`{budget_of(caller)}` must be at least {needed_bytes} bytes "
            f"({format_bytes(needed_bytes)}, {how}) for this step: {why}.{advice} "
            f"Got {budget_bytes} bytes ({format_bytes(budget_bytes)}). {raise_it}, reduce "
            "the batch, or donate arguments that the step replaces (`donate_argnums`)."
        )

    @property
    def smallest_bytes(self) -> int:
        if callable(self._smallest):
            self._smallest = self._smallest()
        return self._smallest

    def beside_program(self, other_bytes: int) -> InfeasibleBudgetError:
        """The error of the same budget where another program of the step was compiled.

        Arguments:
            other_bytes: the bytes that it needs, by XLA.
        """
        least_bytes, unmodified_bytes, advice, is_predicted, *how = self._others
        caller, compiles = how
        smallest = self._smallest
        if not callable(smallest) and smallest <= other_bytes:
            return self
        known: int | Callable[[], int] = other_bytes
        if callable(smallest) and least_bytes < other_bytes:
            known = functools.partial(_smaller, smallest, other_bytes)
        return InfeasibleBudgetError(
            *(self.budget_bytes, known, self.operation),
            least_bytes=min(least_bytes, other_bytes),
            unmodified_bytes=unmodified_bytes,
            advice=advice,
            is_predicted=is_predicted and callable(known),
            caller=caller,
            compiles=compiles,
        )

    def or_lower(self, other: InfeasibleBudgetError) -> InfeasibleBudgetError:
        """Of the errors of the same budget for two forms of a step, that which names fewer
        bytes: no plan of either form has less than that one says.

        Arguments:
            other: the error of the other form.
        """
        return min(self, other, key=lambda error: error._named_bytes)

    @property
    def _named_bytes(self) -> int:
        """The bytes that the message says the budget must be."""
        return self._others[0] if callable(self._smallest) else self._smallest

    @staticmethod
    def restored(
        message: str, budget_bytes: int, smallest_bytes: int, operation: str | None
    ) -> InfeasibleBudgetError:
        """The error with this text, from another process."""
        error = InfeasibleBudgetError(budget_bytes, smallest_bytes, operation)
        error.args = (message,)
        return error

    def __reduce__(self) -> tuple:
        return InfeasibleBudgetError.restored, (
            str(self),
            self.budget_bytes,
            self.smallest_bytes,
            self.operation,
        )


class PlanFileError(ValueError):
    """A plan file cannot be used for a step, or a plan cannot be saved as one.

    The message names the fault: the first equation, argument or option that differs, the
    part of the file that is none of a plan, or the bytes that exceed the budget.
    """


def _smaller(find_bytes: Callable[[], int], other_bytes: int) -> int:
    return min(find_bytes(), other_bytes)


def _raise_between(unmodified_bytes: int | None, compiles: str) -> str:
    smallest = f"`smallest_bytes` of this error, which compiles {compiles} for it"
    if unmodified_bytes is None:
        return f"Raise the budget to {smallest}"
    return (
        f"{unmodified_bytes} bytes ({format_bytes(unmodified_bytes)}) are known to work. "
        f"Raise the budget to that, or to {smallest}"
    )
