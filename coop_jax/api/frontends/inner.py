"""Inner: the jitted function inside of a library's own `jit`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from coop_jax.api.budgeted_jit import BudgetedJit

# What is done with a budgeted function and the arguments that it gets.
Act = Callable[[BudgetedJit, tuple, dict], Any]


class Inner:
    """A budgeted function where a library expects a jitted one.

    Called, it is that function. Lowered, it does what `within` was asked for: the
    arguments that a library hands on can only be used as long as its own call lasts.

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
        """Do something with the function and the arguments of a call.

        Arguments:
            lower: the library's method that lowers a step.
            args, kwargs: of the step.
            act: what to do.
        """
        self._thread.act = act
        lower(*args, **kwargs)
        return self._thread.__dict__.pop("result")

    def lower(self, *args: Any, **kwargs: Any) -> None:
        act = self._thread.__dict__.pop("act")
        self._thread.result = act(self.budgeted, args, kwargs)
