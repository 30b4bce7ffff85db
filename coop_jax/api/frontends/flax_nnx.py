"""Flax NNX: steps whose modules, optimizers and metrics are updated in place.

`nnx.jit` turns the objects of a call into pytrees, calls a jitted function of pytrees,
and writes its results back into the objects. Here that function keeps a budget.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import jax

from coop_jax.api.budgeted_jit import BudgetedJit
from coop_jax.api.frontends.inner import Act, Inner
from coop_jax.api.results_check import Check, named
from coop_jax.base import _compat, _compat_jit


def _nnx() -> Any:
    """`flax.nnx`, None as long as the program has not imported it."""
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx


def is_node(value: Any) -> bool:
    """Whether a value is a module, optimizer, metric, `Rngs` or variable of Flax NNX.

    A JAX reference is a node to Flax, too, but `jax.jit` takes it as it is. So it does with
    a `State`, whose variables are no objects of the caller's: `nnx.jit` would return them
    all beside the results.
    """
    nnx = _nnx()
    if nnx is None or nnx.graphlib.is_array_ref(value) or isinstance(value, nnx.State):
        return False
    return nnx.graphlib.is_graph_node(value)


def _is_whole(value: Any) -> bool:
    """Whether the search for nodes does not look inside of a value."""
    nnx = _nnx()
    return is_node(value) or (nnx is not None and isinstance(value, nnx.State))


def has_nodes(tree: Any) -> bool:
    """Whether a pytree holds a node of Flax NNX."""
    if _nnx() is None:
        return False
    return any(map(is_node, jax.tree.leaves(tree, is_leaf=_is_whole)))


def is_jitted(fn: Any) -> bool:
    """Whether the function is a result of `nnx.jit`."""
    return type(fn).__module__.startswith("flax.nnx.") and hasattr(fn, "jitted_fn")


def donated(args: tuple, kwargs: dict, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a plain step donates by default, as options of `jax.jit`.

    Arguments that hold objects are donated: after a call the objects hold the new arrays,
    and nothing holds the old ones. Empty if the options have donated arguments.
    """
    if "donate_argnums" in options or "donate_argnames" in options:
        return {}
    return {
        "donate_argnums": tuple(i for i, a in enumerate(args) if has_nodes(a)),
        "donate_argnames": tuple(k for k, v in kwargs.items() if has_nodes(v)),
    }


def jitted_with(fn: Callable, options: dict[str, Any]) -> Any:
    """`nnx.jit` of a plain step, given options of `jax.jit`."""
    options = dict(options)
    compiler_options = options.pop("compiler_options", None)
    nnx = _nnx()
    assert nnx is not None, "there are nodes"
    wrapped = nnx.jit(_unbound(fn), **options)
    if compiler_options:
        pure, pure_options = _compat_jit.jit_parts(wrapped.jitted_fn)
        pure_options["compiler_options"] = compiler_options
        wrapped.jitted_fn = jax.jit(pure, **pure_options)
    return wrapped


def _unbound(fn: Callable) -> Callable:
    """A function of a bound method of a plain object, which `nnx.jit` asks for."""
    if not inspect.ismethod(fn):
        return fn

    @functools.wraps(fn)
    def step(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return step


class NnxStep:
    """A result of `nnx.jit` with a function inside that keeps a budget.

    Arguments:
        wrapped: the result of `nnx.jit`; it is not changed.
        options: options of `jax.jit`, which override its own.
        budgeted: returns the function with a budget of a jitted one.
        copies_shared: copies arrays that are donated and are also another argument. For
            donation by default, which the user did not ask for.
    """

    def __init__(
        self,
        wrapped: Any,
        options: dict[str, Any],
        budgeted: Callable[[Any], BudgetedJit],
        *,
        copies_shared: bool,
    ) -> None:
        self._wrapped = copy.copy(wrapped)
        pure, pure_options = _compat_jit.jit_parts(wrapped.jitted_fn)
        pure = copy.copy(pure)
        if hasattr(pure, "ctxtag"):  # by which both sides of a call find each other
            pure.ctxtag = self._wrapped
        self.budgeted = budgeted(jax.jit(pure, **{**pure_options, **options}))
        call = _SharedCopied(self.budgeted) if copies_shared else None
        self._inner = self._wrapped.jitted_fn = Inner(self.budgeted, call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(*args, **kwargs)

    def within(self, args: tuple, kwargs: dict, act: Act) -> Any:
        """Do something with the function inside and the arguments of a call."""
        return self._inner.within(self._wrapped.lower, args, kwargs, act)

    def check(self, args: tuple, kwargs: dict) -> Check:
        """The check of a call, its results named as the caller sees them."""
        check = self.within(args, kwargs, BudgetedJit.check)
        return named(check, _names_of_results(args, kwargs))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Types of the results."""
        return _nnx().eval_shape(self._wrapped.fun, *args, **kwargs)


def _names_of_results(args: tuple, kwargs: dict) -> Callable[[str], str]:
    """A function that names results of the function inside as the caller sees them.

    That returns three trees: the arguments by position and by name, in which an object is
    the list of its variables, and what the step returns.
    """
    nnx = _nnx()
    assert nnx is not None, "there are nodes"
    known = nnx.graphlib.RefMap()  # A variable of two objects is one of the first.
    variables: dict[str, list[str]] = {}
    leaves = jax.tree_util.tree_leaves_with_path((args, kwargs), is_leaf=_is_whole)
    for path, leaf in leaves:
        if is_node(leaf):
            _, state = nnx.graphlib.flatten(leaf, ref_index=known, with_paths=True)
            variables[jax.tree_util.keystr(path)] = [_attributes(p) for p in state.paths]

    def name_of(path: str) -> str:
        found = _OF_VARIABLE.fullmatch(path)
        if found is not None and found[1] in variables:
            path = found[1] + variables[found[1]][int(found[2])] + found[3]
        return _TREES[path[:3]] + path[3:]

    return name_of


def _attributes(path: tuple[Any, ...]) -> str:
    """A variable's way from its object, as one writes it."""
    steps = (f".{p}" if str(p).isidentifier() else f"[{p!r}]" for p in path)
    return "".join(steps)


# A variable among the results of the function inside: the object, its number, and where the
# value is in the variable.
_OF_VARIABLE = re.compile(r"(\[[01]\].*)\.states\[0\]\[(\d+)\](.*)")
_TREES = {"[0]": "args", "[1]": "kwargs", "[2]": "result"}


class _SharedCopied:
    """Calls a jitted function with arrays copied that are two arguments and donated.

    Two variables may hold one array, as those of a model and of a copy of it do at first.
    XLA refuses to donate it twice, and to donate it while it is read as another argument.
    """

    def __init__(self, budgeted: BudgetedJit) -> None:
        self._budgeted = budgeted
        _, options = _compat_jit.jit_parts(budgeted.jitted)
        self._nums = options.get("donate_argnums", ())
        self._names = options.get("donate_argnames", ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seen = {
            id(leaf)
            for leaf in jax.tree.leaves(
                (
                    [a for i, a in enumerate(args) if i not in self._nums],
                    [v for k, v in kwargs.items() if k not in self._names],
                )
            )
        }

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, jax.Array) or _compat.is_traced([leaf]):
                return leaf
            if id(leaf) in seen:
                return leaf.copy()
            seen.add(id(leaf))
            return leaf

        args = tuple(
            jax.tree.map(own, a) if i in self._nums else a for i, a in enumerate(args)
        )
        kwargs = {
            k: jax.tree.map(own, v) if k in self._names else v for k, v in kwargs.items()
        }
        return self._budgeted(*args, **kwargs)
