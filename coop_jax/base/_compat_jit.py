"""The options that `jax.jit` has of a function, and its dispatch of a call.

With `_compat` the only module that touches `jax._src`. The public interface of `jax.jit`
does not say which options a jitted function has, and has no place for a function that
chooses the executable of a call. Both are read off the `PjitFunction` here. Tested with
JAX 0.10.2 and 0.12.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import core as _core
from jax._src import effects as _effects
from jax._src import pjit as _pjit
from jax._src import tree_util as _tree_util
from jax._src.interpreters import pxla as _pxla
from jax._src.lax import lax as _lax
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import jax_jit as _jax_jit
from jax._src.sharding_impls import UnspecifiedValue as _UnspecifiedValue
from jax._src.state.types import RefEffect as _RefEffect
from jax.experimental.layout import Format as _Format

# Chooses the executable of a call: `(args, kwargs) -> (results, fast path or None)`.
Miss = Callable[[tuple, dict], tuple[Any, Any]]


def is_jitted(fn: Any) -> bool:
    """Whether `jax.jit` returned this function."""
    return hasattr(fn, "_jit_info") and hasattr(fn, "_fun")


def jit_parts(jitted: Any) -> tuple[Callable, dict[str, Any]]:
    """The function inside of a jitted one, and the options it was jitted with.

    `jax.jit(function, **options)` is equivalent to `jitted`. Static and donated arguments
    are those that `jax.jit` resolved, by position and by name.
    """
    info = jitted._jit_info
    options = {
        name: value
        for name in (
            "static_argnums",
            "static_argnames",
            "donate_argnums",
            "donate_argnames",
            "keep_unused",
            "device",
            "backend",
        )
        if (value := getattr(info, name))
    }
    for side in ("in", "out"):
        shardings = _shardings(info, side)
        if shardings is not None:
            options[f"{side}_shardings"] = shardings
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    return jitted._fun, options


def _shardings(info: Any, side: str) -> Any:
    """The shardings and layouts given for arguments or results; None if there are none."""
    leaves = getattr(info, f"{side}_shardings_leaves")
    tree = getattr(info, f"{side}_shardings_treedef")
    layouts = getattr(info, f"{side}_layouts_leaves")
    if len(layouts) != len(leaves):  # one for all of them
        layouts = [layouts[0] if layouts else None] * len(leaves)
    given = []
    for sharding, layout in zip(leaves, layouts, strict=True):
        sharding = None if isinstance(sharding, _UnspecifiedValue) else sharding
        given.append(sharding if layout is None else _Format(layout, sharding))
    if all(sharding is None for sharding in given):
        return None
    return tree.unflatten(given)


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the static arguments."""
    info = jitted._jit_info
    return info.static_argnums, info.static_argnames


def parse_arguments(jitted: Any, args: tuple, kwargs: dict) -> tuple[Any, list[Any]]:
    """The arguments of a call as `jax.jit` sees them.

    Returns:
        The signature, which is hashable and equal for calls with equal trees and static
        arguments, and the leaves of the other arguments.

    Raises:
        ValueError: `jax.jit`'s, if a static argument cannot be hashed.
    """
    nums, names = static_arguments(jitted)
    return _jax_jit.parse_arguments(
        args,
        tuple(kwargs.values()),
        tuple(kwargs.keys()),
        nums,
        names,
        _tree_util.tracing_registry,
    )


def abstract_value(leaf: Any) -> Any:
    """The type that `jax.jit` traces a leaf as: an int and a weak int32 scalar are one.

    Raises:
        TypeError: if it is no array.
    """
    return _core.shaped_abstractify(leaf)


def is_committed(array: Any) -> bool:
    """Whether the array is bound to its devices: if not, `jax.jit` may move it."""
    return bool(getattr(array, "_committed", True))


def is_transformed() -> bool:
    """Whether the caller is being traced, as inside of `jit`, `grad`, `vmap`, ..."""
    return not _core.trace_state_clean()


def traced_parts(traced: Any) -> tuple[Any, tuple[Any, ...]]:
    """The closed jaxpr of a `jax.stages.Traced`, and the values of its first inputs.

    Tracers that the function closes over come before its own arguments.
    """
    return traced.jaxpr, tuple(traced._consts)


def leaf_shardings(traced: Any) -> tuple[list[Any], list[Any]]:
    """By leaf of arguments and of results, the sharding that was asked for, or None."""

    def given(shardings: Any) -> list[Any]:
        return [None if isinstance(s, _UnspecifiedValue) else s for s in shardings]

    inputs = given(traced._params["in_shardings"])
    outputs = given(traced._params["out_shardings"])
    return inputs[len(traced._consts) :], outputs


def dispatcher(jitted: Any, miss: Miss) -> Callable:
    """A function that is called like a jitted one, and dispatches as fast.

    Arguments:
        jitted: the jitted function; the dispatcher has its static and donated arguments.
        miss: called with a kind of arguments that is not known yet. If it returns a fast
            path, all further calls with such arguments use it.
    """
    info = jitted._jit_info

    def cache_miss(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        results, fast_path = miss(args, kwargs)
        return results, fast_path, False

    key = _pxla.JitGlobalCppCacheKeys(
        donate_argnums=info.donate_argnums, donate_argnames=info.donate_argnames
    )
    dispatch = _jaxlib.pjit(
        getattr(jitted, "__name__", "step"),
        jitted._fun,
        cache_miss,
        info.static_argnums,
        info.static_argnames,
        key,
        _tree_util.dispatch_registry,
        _pxla.cc_shard_arg,
        _pjit.make_jit_cpp_cache(_KINDS_OF_ARGUMENTS),
    )
    dispatch._fun = jitted._fun  # `jax.debug_nans` runs it again, operation by operation
    return dispatch


# Calls of more kinds are dispatched anew.
_KINDS_OF_ARGUMENTS = 1024


def call_with_fast_path(jitted: Any, args: tuple, kwargs: dict) -> tuple[Any, Any]:
    """Call a jitted function; its results, and the fast path of further such calls."""
    params, leaves = _pjit._infer_params(jitted._fun, jitted._jit_info, args, kwargs)
    results, flat, tree, leaves, jaxpr, executable, profiler, constants = (
        _pjit._run_python_pjit(params, leaves, jitted._fun, args, kwargs)
    )
    fast_path = _pjit._get_fastpath_data(
        executable, tree, leaves, flat, jaxpr.effects, jaxpr.consts, profiler, constants
    )
    return results, fast_path


def with_weak_type(value: Any, aval: Any) -> Any:
    """The value, weakly typed if and only if the type is."""
    if getattr(aval, "weak_type", False) == _core.typeof(value).weak_type:
        return value
    return _lax._convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


def may_have_derivative_rule(closed: Any) -> bool:
    """Whether a function with this jaxpr can be given a derivative rule of its own.

    `jax.custom_jvp` refuses some effects, those on references among them.
    """
    allowed = _effects.custom_derivatives_allowed_effects
    effects = getattr(closed, "effects", ())
    return not allowed.filter_not_in(effects) and not any(
        isinstance(effect, _RefEffect) for effect in effects
    )
