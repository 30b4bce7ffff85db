"""Traced step: a step as a flat program, and how to jit another program in its place."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax

from coop_jax import _compat, until_buffers
from coop_jax.arena_run import (
    StepWithArena,
    carried,
    carried_jit_options,
    has_arena,
    with_arena_parameter,
)
from coop_jax.compiler_options import compiler_options
from coop_jax.exchange import empty_arena
from coop_jax.pool_gradient import with_pool_gradients
from coop_jax.program import Program
from coop_jax.trace import flatten
from coop_jax.xla_proto import has_assignment


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """A traced step: its flat program, and how to jit another program in its place.

    Attributes:
        program: the flat program.
        fn: the function as given.
        args, kwargs: the arguments it was traced for.
        jit_options: as given to `jax.jit`, and what XLA is told besides.
        out_tree: tree of the results.
        drop_static: separates the dynamic arguments.
    """

    program: Program
    fn: Callable
    args: tuple
    kwargs: dict
    jit_options: dict[str, Any]
    out_tree: Any
    drop_static: Callable[[tuple, dict], tuple[tuple, dict]]

    @staticmethod
    def trace(fn, jit_options, args, kwargs, drop_static) -> TracedStep:
        jit_options = dict(jit_options)
        is_jitted = hasattr(fn, "trace") and hasattr(fn, "lower")
        if is_jitted and not jit_options:
            traced = fn.trace(*args, **kwargs)
            jit_options = _donation(traced, args)
        else:
            traced = jax.jit(fn, **jit_options).trace(*args, **kwargs)
        infos = jax.tree.leaves(
            traced.args_info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo)
        )
        step = TracedStep(
            program=flatten(traced.jaxpr, [info.donated for info in infos]),
            fn=fn,
            args=args,
            kwargs=kwargs,
            jit_options=jit_options,
            out_tree=jax.tree.structure(traced.out_info),
            drop_static=drop_static,
        )
        platform = step.device().platform
        options = compiler_options(platform, jit_options.get("compiler_options"))
        if options:
            step = dataclasses.replace(
                step, jit_options={**jit_options, "compiler_options": options}
            )
        if step.num_devices() > 1:  # Their shards are left to XLA.
            return step
        program = with_pool_gradients(step.program, platform)
        return dataclasses.replace(step, program=program)

    def function(self, program: Program) -> Callable:
        """A program as a function with the step's own signature."""
        run = _compat.jaxpr_as_fun(program.to_jaxpr())

        def step(*args, **kwargs):
            leaves = jax.tree.leaves(self.drop_static(args, kwargs))
            return jax.tree.unflatten(self.out_tree, run(*leaves))

        return functools.wraps(self.fn)(step)

    def jit(self, program: Program) -> Any:
        return jax.jit(self.function(program), **self.jit_options)

    def carrying(self, program: Program) -> StepWithArena:
        """A program with an arena, compiled to get it as an argument."""
        arena = program.eqns[0].outvars[0].aval
        run = _compat.jaxpr_as_fun(carried(program).to_jaxpr())

        def step(arena, /, *args, **kwargs):
            leaves = jax.tree.leaves(self.drop_static(args, kwargs))
            arena, *results = run(arena, *leaves)
            return arena, jax.tree.unflatten(self.out_tree, results)

        step = with_arena_parameter(functools.wraps(self.fn)(step))
        on_device = jax.sharding.SingleDeviceSharding(self.device())
        place = jax.ShapeDtypeStruct(arena.shape, arena.dtype, sharding=on_device)
        with _without_donation_warning():
            jitted = jax.jit(step, **carried_jit_options(self.jit_options, step))
            compiled = jitted.lower(place, *self.args, **self.kwargs).compile()
        return StepWithArena(
            compiled, jax.jit(lambda: empty_arena(arena), out_shardings=on_device)
        )

    def lower(self, program: Program) -> Any:
        """Lower a program in the step's place.

        Without the warning about donated buffers that nothing can use: JAX has given it
        for the step as written.
        """
        with _without_donation_warning():
            lowered = self.jit(program).lower(*self.args, **self.kwargs)
        _compat.add_to_cache_key(lowered, _digest_of_names(program))
        return lowered

    def compile(self, program: Program) -> Any:
        if has_arena(program):
            return self.carrying(program)
        return self.compile_lowered(self.lower(program))

    def compile_afresh(self, lowered: Any) -> Any:
        """Compile what `lower` returned, to read what XLA stores of it: what comes from
        JAX's compilation cache need not say that."""
        with _compat.compiled_afresh(lowered):
            return self.compile_lowered(lowered)

    def readable(self, program: Program, compiled: Any) -> Any:
        """The compiled program, or another of the same that says where XLA put what."""
        may_be_cached = _compat.is_compilation_cache_enabled()
        if may_be_cached and not has_assignment(compiled):
            if not _compat.is_absent(self.device()):  # Of these XLA never says it.
                return self.compile_afresh(self.lower(program))
        return compiled

    def compile_lowered(self, lowered: Any, options: dict[str, Any] | None = None) -> Any:
        """Compile a version of the step, for the device it is for."""
        given = self.jit_options.get("compiler_options") or {}
        options = {**given, **(options or {})}
        if self.num_devices() == 1 and until_buffers.is_enough_for(self.device()):
            return until_buffers.compile_until_buffers(lowered, self.device(), options)
        return lowered.compile(options or None)

    def device(self) -> Any:
        """One of the devices the step runs on."""
        devices = next(self._device_sets(), None)
        if devices is None:
            return _compat.default_device()
        return min(devices, key=lambda d: d.id)

    def num_devices(self) -> int:
        """How many devices its arguments lie on, or are to lie on."""
        return max(map(len, self._device_sets()), default=1)

    def _device_sets(self) -> Iterator[set[Any]]:
        leaves = jax.tree.leaves(self.drop_static(self.args, self.kwargs))
        for leaf in leaves:
            if not _compat.is_traced([leaf]):
                yield from _device_set(getattr(leaf, "sharding", None))
        for name in ("in_shardings", "out_shardings"):
            for sharding in jax.tree.leaves(self.jit_options.get(name)):
                yield from _device_set(sharding)


def _device_set(sharding: Any) -> Iterator[set[Any]]:
    if isinstance(sharding, jax.sharding.Sharding):
        yield sharding.device_set


def _digest_of_names(program: Program) -> str:
    """Programs that compute the same under other names are planned from other names."""
    names = "\n".join(map(_compat.name_stack, program.eqns))
    return hashlib.sha256(names.encode()).hexdigest()


@contextlib.contextmanager
def _without_donation_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield


def _donation(traced: Any, args: tuple) -> dict[str, Any]:
    """`donate_argnums`/`donate_argnames` of a function that is already jitted."""
    infos, named_infos = traced.args_info
    if len(infos) != len(args):
        raise ValueError(
            "`remat_train_step(fn, ...)` got a jitted function with static arguments, "
            "which it cannot see from outside. Pass the function without `jax.jit` and "
            "give `static_argnums=`/`static_argnames=` to `remat_train_step`."
        )

    def is_donated(info: Any) -> bool:
        leaves = jax.tree.leaves(info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo))
        return bool(leaves) and all(leaf.donated for leaf in leaves)

    nums = tuple(i for i, info in enumerate(infos) if is_donated(info))
    names = tuple(k for k, info in named_infos.items() if is_donated(info))
    options: dict[str, Any] = {}
    if nums:
        options["donate_argnums"] = nums
    if names:
        options["donate_argnames"] = names
    return options
