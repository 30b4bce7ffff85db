"""Equinox: steps whose arguments hold arrays and other things in one pytree.

As with `equinox.filter_jit`, JAX and NumPy arrays are traced and everything else is
static, in arguments and in results.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax

from coop_jax.api.budgeted_jit import BudgetedJit
from coop_jax.api.frontends.inner import Act, Inner
from coop_jax.api.results_check import Check, named
from coop_jax.base import _compat_jit


def _equinox() -> Any:
    """`equinox`, None as long as the program has not imported it."""
    equinox: Any = sys.modules.get("equinox")
    return equinox


def is_module(value: Any) -> bool:
    """Whether a value is a module of Equinox."""
    equinox = _equinox()
    return equinox is not None and isinstance(value, equinox.Module)


def has_modules(tree: Any) -> bool:
    """Whether a pytree holds a module of Equinox."""
    if _equinox() is None:
        return False
    return any(map(is_module, jax.tree.leaves(tree, is_leaf=is_module)))


def is_jitted(fn: Any) -> bool:
    """Whether the function is a result of `equinox.filter_jit`."""
    return is_module(fn) and _compat_jit.is_jitted(getattr(fn, "_cached", None))


class FilterJittedStep:
    """A result of `equinox.filter_jit` with a function inside that keeps a budget.

    Arguments:
        wrapped: the result of `filter_jit`; it is not changed.
        options: options of `jax.jit`, which override its own.
        budgeted: returns the function with a budget of a jitted one.
    """

    def __init__(
        self, wrapped: Any, options: dict[str, Any], budgeted: Callable[[Any], BudgetedJit]
    ) -> None:
        pure, pure_options = _compat_jit.jit_parts(wrapped._cached)
        self.budgeted = budgeted(jax.jit(pure, **{**pure_options, **options}))
        self._inner = Inner(self.budgeted)
        self._wrapped = dataclasses.replace(wrapped, _cached=self._inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(*args, **kwargs)

    def within(self, args: tuple, kwargs: dict, act: Act) -> Any:
        """Do something with the function inside and the arguments of a call."""
        with warnings.catch_warnings():
            if self._wrapped.filter_warning:  # as for its calls
                warnings.filterwarnings("ignore", message="Some donated buffers were not")
            return self._inner.within(self._wrapped.lower, args, kwargs, act)

    def check(self, args: tuple, kwargs: dict) -> Check:
        """The check of a call: of the step's results, without Equinox's own."""
        return _of_tree(self.within(args, kwargs, BudgetedJit.check), "[1]")

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Types of the results."""
        fn = self._wrapped.__wrapped__
        return _equinox().filter_eval_shape(fn, *args, **kwargs)


class FilteredStep:
    """A plain step on pytrees of Equinox, with its arrays traced and the rest static.

    Unlike `filter_jit` it takes every option of `jax.jit`, so that any of the arguments
    can be donated.

    Arguments:
        fn: the step.
        options: of `jax.jit`.
        budgeted: makes the function of a jitted one.
    """

    def __init__(
        self, fn: Callable, options: dict[str, Any], budgeted: Callable[[Any], BudgetedJit]
    ) -> None:
        equinox = _equinox()
        self._fn = fn

        # No parameter with a name: one of the step may have it, and be static by name.
        def pure(*args: Any, **kwargs: Any) -> Any:
            static, *arrays = args
            rest, rest_by_name = static.tree()
            args = tuple(
                a if i in self._nums else equinox.combine(a, rest[i])
                for i, a in enumerate(arrays)
            )
            kwargs = {
                k: v if k in self._names else equinox.combine(v, rest_by_name[k])
                for k, v in kwargs.items()
            }
            results, rest = equinox.partition(fn(*args, **kwargs), equinox.is_array)
            return results, _Static.of(rest)

        pure = functools.update_wrapper(pure, fn, updated=())
        del pure.__wrapped__  # whose signature has no parameter for the static part
        resolved = _compat_jit.jit_parts(jax.jit(fn, **options))[1]
        self._nums = resolved.get("static_argnums", ())
        self._names = resolved.get("static_argnames", ())
        self.budgeted = budgeted(jax.jit(pure, **_one_further(resolved)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._pure_arguments(args, kwargs)
        results, rest = self.budgeted(*args, **kwargs)
        return _equinox().combine(results, rest.tree())

    def within(self, args: tuple, kwargs: dict, act: Act) -> Any:
        """Do something with the function inside and the arguments of a call."""
        return act(self.budgeted, *self._pure_arguments(args, kwargs))

    def check(self, args: tuple, kwargs: dict) -> Check:
        """The check of a call."""
        return _of_tree(self.within(args, kwargs, BudgetedJit.check), "[0]")

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Types of the results."""
        return _equinox().filter_eval_shape(self._fn, *args, **kwargs)

    def _pure_arguments(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with every array apart from the rest, which is static."""
        equinox, nums, names = _equinox(), self._nums, self._names

        def is_traced(leaf: Any) -> bool:
            return equinox.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)

        arrays = (
            tuple(
                a if i in nums else equinox.filter(a, is_traced) for i, a in enumerate(args)
            ),
            {
                k: v if k in names else equinox.filter(v, is_traced)
                for k, v in kwargs.items()
            },
        )
        rest = (
            tuple(
                None if i in nums else equinox.filter(a, is_traced, inverse=True)
                for i, a in enumerate(args)
            ),
            {
                k: None if k in names else equinox.filter(v, is_traced, inverse=True)
                for k, v in kwargs.items()
            },
        )
        return (_Static.of(rest), *arrays[0]), arrays[1]


def _of_tree(check: Check, place: str) -> Check:
    """The check of one of the trees that a function returns, paths beginning there."""
    return named(
        check,
        lambda path: path.removeprefix(place) if path.startswith(place) else None,
    )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Static:
    """A pytree of things that are not arrays, compared and hashed by its leaves."""

    structure: Any
    leaves: tuple[Any, ...]

    @staticmethod
    def of(tree: Any) -> _Static:
        leaves, structure = jax.tree.flatten(tree)
        return _Static(structure, tuple(leaves))

    def tree(self) -> Any:
        return jax.tree.unflatten(self.structure, self.leaves)


def _one_further(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `jax.jit`, positions resolved, with one more argument in front."""
    moved = dict(options)
    for name in ("static_argnums", "donate_argnums"):
        if name in moved:
            moved[name] = tuple(i + 1 for i in moved[name])
    shardings = moved.get("in_shardings")
    if isinstance(shardings, (tuple, list)):
        moved["in_shardings"] = (None, *shardings)
    return moved
