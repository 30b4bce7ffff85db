"""Largest: the largest batch or sequence with which a step fits a budget."""

from __future__ import annotations

import dataclasses
import numbers
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from coop_jax.api.size_search import SizeSearch
from coop_jax.api.sized_step import SizedStep
from coop_jax.api.train_step import RematTrainStep, remat_train_step, traced_step
from coop_jax.base.budget import check_budget, format_bytes, resolve_budget
from coop_jax.base.errors import InfeasibleBudgetError
from coop_jax.plan.planner import PlanOptions
from coop_jax.report import Plan


@dataclasses.dataclass(frozen=True, eq=False)
class Largest:
    """The largest size with which a step fits a budget; prints as a short report.

    Attributes:
        size: the number that was chosen, of those given.
        plan: its plan, compiled; `plan.measured_bytes` is XLA's figure, within the budget.
        next_size: the next larger number of those given; None if there is none.
        next_bytes: XLA's bytes of the smallest plan of the next size, over the budget; None
            if none was compiled.
        num_compilations: the number of compilations by XLA, of all sizes.
    """

    size: int
    plan: Plan
    next_size: int | None
    next_bytes: int | None
    num_compilations: int

    @property
    def measured_bytes(self) -> int:
        """XLA's figure for the planned step of `size`, in bytes."""
        assert self.plan.measured_bytes is not None, "the answer is compiled"
        return self.plan.measured_bytes

    def __str__(self) -> str:
        return (
            f"largest size {self.size}: {format_bytes(self.measured_bytes)} of "
            f"{format_bytes(self.plan.budget_bytes)}\n  next         {self._next()}\n"
            f"  compilations {self.num_compilations}, of all sizes\n{self.plan}"
        )

    def _next(self) -> str:
        if self.next_size is None:
            return "none: all sizes fit"
        if self.next_bytes is None:
            return f"{self.next_size} was not compiled"
        return f"{self.next_size} needs {format_bytes(self.next_bytes)}"


def largest(
    make_step: Callable[[int], tuple[Callable, Sequence[Any]]],
    sizes: Iterable[int],
    *,
    target: str | None = None,
    budget: int | str = "device",
    planner: str | PlanOptions = "search",
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    compiler_options: dict[str, Any] | None = None,
    verbose: bool = False,
) -> Largest:
    """The largest batch or sequence with which a training step fits a budget.

    Nothing is run, and no array is made where `make_step` makes none::

        def make_step(batch_size):
            batch = jax.ShapeDtypeStruct((batch_size, 2048), "int32")
            return train_step, (state, batch)

        sizes = range(8, 513, 8)
        found = coop_jax.largest(make_step, sizes, target="h200", donate_argnums=0)
        print(found.size, found.plan)

    A step's bytes are a fixed part and a part that grows with the size. How they grow is
    read from the step's shapes at a few sizes, without a compilation; XLA's figure at a
    predicted size corrects the prediction. Larger sizes are taken to need no less: where a
    larger one needs less, the answer may be the smaller one. It fits in any case, as it is
    planned and compiled like `remat_train_step` with this budget and these options does.

    Sizes other than the answer take at most four compilations in all, unless more than one
    that was predicted to fit does not. Of a step with loops, whole sizes are planned, as
    nothing less shows what their smallest plans need: at most four beside the answer.

    Arguments:
        make_step: `make_step(size)` returns the step, as for `remat_train_step`, and the
            tuple of its arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`s. Called
            for several sizes, some larger than the answer.
        sizes: the numbers of sequences, tokens or others that may be chosen, increasing.
        target, budget: as for `fit`; a budget in bytes, `"device"` or `"no-xla-remat"`, not
            a percentage.
        planner, static_argnums, static_argnames, donate_argnums, donate_argnames,
            keep_unused, compiler_options, verbose: as for `remat_train_step`.

    Returns:
        A `Largest`: `.size`, `.plan`, `.measured_bytes`.

    Raises:
        InfeasibleBudgetError: if the smallest size does not fit; it says what that needs.
        TypeError, ValueError: if an argument or a result of `make_step` is malformed.
        ImportError, RuntimeError: as `fit`, for targets.
    """
    known_sizes = _checked_sizes(sizes)
    budget = _checked_budget(budget)
    if not callable(make_step):
        raise TypeError(
            "`largest(make_step, ...)` must be given a callable that takes a size and "
            f"returns a step and its arguments. Got {make_step!r} of type "
            f"{type(make_step).__name__}."
        )

    def traced(size: int) -> Any:
        fn, args = _checked_step(make_step(size), size)
        step = remat_train_step(
            fn,
            budget=budget,
            planner=planner,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            keep_unused=keep_unused,
            compiler_options=compiler_options,
        )
        return traced_step(step.called_by("largest"), target, args)

    def make(size: int) -> SizedStep:
        def log(line: str) -> None:
            if verbose:
                print(f"[coop_jax] size {size}: {line}", file=sys.stderr, flush=True)

        step = smallest if size == known_sizes[0] else traced(size)
        return SizedStep(step, planner, log, "largest")

    smallest = traced(known_sizes[0])
    budget_bytes = resolve_budget(budget, 0, smallest.device(), "largest")
    search = SizeSearch(known_sizes, make, budget_bytes)
    try:
        index, fitted = search.run()
    except InfeasibleBudgetError as error:
        _say_that_none_fits(error, known_sizes)
        raise
    after = search.steps.get(index + 1)
    next_bytes = after.bytes if after is not None and after.is_measured else None
    return Largest(
        size=known_sizes[index],
        plan=fitted.plan,
        next_size=next(iter(known_sizes[index + 1 :]), None),
        next_bytes=next_bytes if (next_bytes or 0) > budget_bytes else None,
        num_compilations=search.num_compilations,
    )


def _checked_sizes(sizes: Iterable[int]) -> list[int]:
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise TypeError(
            "`largest(sizes=...)` must be an iterable of ints such as `range(8, 513, 8)`. "
            f"Got {sizes!r} of type {type(sizes).__name__}."
        )
    known: list[int] = []
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise TypeError(
                "`largest(sizes=...)` must be ints. "
                f"Got {size!r} of type {type(size).__name__}."
            )
        if known and size <= known[-1]:
            raise ValueError(
                "`largest(sizes=...)` must increase. "
                f"Got {size} after {known[-1]}. Sort them, each once."
            )
        known.append(int(size))
    if not known:
        raise ValueError(
            f"`largest(sizes=...)` must have at least one size. Got {sizes!r}."
        )
    return known


def _checked_budget(budget: int | str) -> int | str:
    budget = check_budget(budget, "largest")
    if isinstance(budget, str) and budget.rstrip().endswith("%"):
        raise ValueError(
            '`largest(budget=...)` must be bytes or "device": every size keeps a '
            f"percentage of its own bytes or none does. Got {budget!r}. Give the bytes, "
            'e.g. budget="12GiB".'
        )
    return budget


def _checked_step(made: Any, size: int) -> tuple[Callable, tuple]:
    is_pair = isinstance(made, tuple) and len(made) == 2
    if not is_pair or not isinstance(made[1], (tuple, list)):
        raise TypeError(
            "`largest(make_step, ...)`: `make_step(size)` must return the step and the "
            f"tuple of its arguments, `(step, (state, batch))`. Got {made!r} for size "
            f"{size}."
        )
    fn, args = made
    if isinstance(fn, RematTrainStep):
        raise TypeError(
            "`largest(make_step, ...)` must be given steps as written. Got one made by "
            f"`remat_train_step`, {fn!r}: return the function inside of it."
        )
    return fn, tuple(args)


def _say_that_none_fits(error: InfeasibleBudgetError, sizes: list[int]) -> None:
    """Make the error of the smallest size say that it is of that."""
    which = "the only one" if len(sizes) == 1 else f"the smallest of {len(sizes)}"
    error.args = (
        "`largest(sizes=...)` must have a size that fits the budget. Got none: size "
        f"{sizes[0]}, {which}, does not. {error}",
    )
