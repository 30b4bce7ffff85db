"""Inner: the jitted function inside of a library's `jit`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from coop_jax.api.budgeted_jit import BudgetedJit

# Called with a budgeted function and the arguments of its call.
Act = Callable[[BudgetedJit, tuple, dict], Any]


class Inner:
    """A budgeted function where a library expects a jitted one.

    A call is a call of that function. `lower` runs the `act` of `within`: the arguments
    that a library passes on can only be used during its own call.

    Arguments:
        budgeted: the function.
        call: called in its place, to prepare the arguments.
    """

    def __init__(self, budgeted: BudgetedJit, call: Callable | None = None) -> None:
        self.budgeted = budgeted
        self._call = call or budgeted
        self._thread = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def within(self, lower: Callable, args: tuple, kwargs: dict, act: Act) -> Any:
        """The result of `act` on the function and the arguments that a call passes to it.

        Arguments:
            lower: the library's method that lowers a step.
            args, kwargs: the step's arguments.
            act: called with the budgeted function and its arguments.
        """
        self._thread.act = act
        lower(*args, **kwargs)
        return self._thread.__dict__.pop("result")

    def lower(self, *args: Any, **kwargs: Any) -> None:
        act = self._thread.__dict__.pop("act")
        self._thread.result = act(self.budgeted, args, kwargs)
