"""Traced step: a step as a flat program, and the `jax.jit` of programs that replace it."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from coop_jax.arena.exchange import empty_arena
from coop_jax.arena.executable import (
    StepWithArena,
    carried,
    carried_jit_options,
    has_arena,
    with_arena_parameter,
)
from coop_jax.backends import backend_of
from coop_jax.backends.backend import Backend
from coop_jax.base import _compat, _compat_jit
from coop_jax.compile.dynamic_arguments import without_values
from coop_jax.emit.own_broadcasts import with_own_broadcasts
from coop_jax.trace.in_shard_maps import runnable
from coop_jax.trace.inline import flatten
from coop_jax.trace.mapped import with_body_of_map
from coop_jax.trace.program import Program
from coop_jax.trace.shards import with_bodies_of_maps
from coop_jax.xla.buffer_assignment import has_assignment

_IS_PART: contextvars.ContextVar[bool] = contextvars.ContextVar("is_part", default=False)


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """A traced step: its flat program, and the means to jit a program that replaces it.

    Attributes:
        program: the flat program.
        jitted: the step as written, jitted with its own options and the backend's
            compiler options.
        traced: that function, traced for these arguments.
        args, kwargs: the arguments, without the values of arrays: a step that is kept for
            later calls keeps no array of the first one alive.
        captured: values of the program's first inputs, which are no arguments: tracers
            that the step closes over.
        argument_devices: the devices that the arguments' leaves lie on, leaf by leaf.
        options_of_plans: the backend's compiler options of programs that replace the step.
    """

    program: Program
    jitted: Any
    traced: Any
    args: tuple
    kwargs: dict
    captured: tuple[Any, ...] = ()
    argument_devices: tuple[frozenset[Any], ...] = ()
    options_of_plans: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    _jitted: weakref.WeakKeyDictionary[Program, Any] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary, repr=False
    )
    # One item for each compilation; shared by the steps that replace one another.
    _compilations: list[None] = dataclasses.field(default_factory=list, repr=False)
    # By text with names: what was compiled to be read of bodies; shared in the same way.
    _read_bodies: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @staticmethod
    def trace(
        fn: Callable, jit_options: dict[str, Any], args: tuple, kwargs: dict
    ) -> TracedStep:
        """The traced step of a function that is jitted with these options."""
        given = {name: value for name, value in jit_options.items() if value is not None}
        return TracedStep.of(jax.jit(fn, **given), args, kwargs)

    @staticmethod
    def of(
        jitted: Any, args: tuple, kwargs: dict, *, xla_rematerializes: bool = True
    ) -> TracedStep:
        """The traced step of a jitted function.

        Arguments:
            xla_rematerializes: whether XLA may rematerialize by itself, in what is planned
                and as written.
        """
        traced = _trace_as_one(jitted, args, kwargs)
        closed, captured = _compat_jit.traced_parts(traced)
        infos = jax.tree.leaves(
            traced.args_info, is_leaf=lambda x: isinstance(x, jax.stages.ArgInfo)
        )
        donated = [False] * len(captured) + [info.donated for info in infos]
        program = with_bodies_of_maps(with_body_of_map(flatten(closed, donated)))
        step = TracedStep(
            *(program, jitted, traced),
            *(*without_values(jitted, args, kwargs), captured),
            _devices_of(_compat_jit.parse_arguments(jitted, args, kwargs)[1]),
        )
        backend = backend_of(step.device())
        fn, given = _compat_jit.jit_parts(jitted)
        options = {**backend.compiler_options, **(given.get("compiler_options") or {})}
        if not xla_rematerializes:
            options = backend.without_rematerialization(options)
        if options != given.get("compiler_options", {}):
            jitted = jax.jit(fn, **{**given, "compiler_options": options})
            traced = _trace_as_one(jitted, args, kwargs)
            step = dataclasses.replace(step, jitted=jitted, traced=traced)
        if step.num_devices() > 1:  # The partitioning into shards is left to XLA.
            return step
        program = backend.prepare(step.program)
        return dataclasses.replace(
            step, program=program, options_of_plans=backend.options_of_plans(program)
        )

    @property
    def fn(self) -> Callable:
        """The step as written, not jitted."""
        return _compat_jit.jit_parts(self.jitted)[0]

    @property
    def jit_options(self) -> dict[str, Any]:
        """The options of `jax.jit`, the backend's compiler options included."""
        return _compat_jit.jit_parts(self.jitted)[1]

    def plan_options(self, program: Program) -> dict[str, Any]:
        """The options of `jax.jit` of a program that replaces the step; the compiler
        options of the step's own take precedence."""
        options = self.jit_options
        of_plan = {**self.options_of_plans, **program.compiler_options}
        if not of_plan:
            return options
        own = options.get("compiler_options") or {}
        return {**options, "compiler_options": {**of_plan, **own}}

    @property
    def options_for_memory(self) -> dict[str, Any]:
        """Compiler options for an order for memory, without those that plans have."""
        if self.num_devices() > 1:
            return {}
        known = self.plan_options(self.program).get("compiler_options") or {}
        options = self.backend.options_for_memory.items()
        return {name: value for name, value in options if name not in known}

    @property
    def out_tree(self) -> Any:
        """The tree structure of the results."""
        return jax.tree.structure(self.traced.out_info)

    def leaves(self, args: tuple, kwargs: dict) -> list[Any]:
        """The leaves of the arguments that are not static."""
        return _compat_jit.parse_arguments(self.jitted, args, kwargs)[1]

    def flat_function(self, program: Program) -> Callable[..., list[Any]]:
        """A program as a function of its inputs that returns a flat list of results, of
        the types of the step's results."""
        mapped = program.mapped
        if mapped is None and self.num_devices() > 1:
            program = with_own_broadcasts(program)
        run = runnable(program)
        run = run if mapped is None else mapped.around(run)
        return lambda *inputs: self._typed_as_written(run(*inputs))

    def _typed_as_written(self, results: list[Any]) -> list[Any]:
        """Results, weakly typed where those of the step as written are."""
        outvars = _compat.open_jaxpr(self.traced.jaxpr)[0].outvars
        return [
            _compat_jit.with_weak_type(value, v.aval)
            for value, v in zip(results, outvars, strict=True)
        ]

    def function(self, program: Program) -> Callable:
        """A program as a function with the step's own signature."""
        run = self.flat_function(program)

        def step(*args, **kwargs):
            results = run(*self.captured, *self.leaves(args, kwargs))
            return jax.tree.unflatten(self.out_tree, results)

        return functools.update_wrapper(step, self.fn, updated=())

    def jit(self, program: Program) -> Any:
        """A program, jitted with the step's options; one object for each program.

        `jax.jit` calls run the executable that was compiled of the same object.
        """
        if program not in self._jitted:
            options = self.plan_options(program)
            self._jitted[program] = jax.jit(self.function(program), **options)
        return self._jitted[program]

    def carrying(self, program: Program) -> StepWithArena:
        """A program with an arena, compiled so that the arena is an argument."""
        arena = program.eqns[0].outvars[0].aval
        run = _compat.jaxpr_as_fun(carried(program).to_jaxpr())

        def step(arena, /, *args, **kwargs):
            arena, *results = run(arena, *self.leaves(args, kwargs))
            results = self._typed_as_written(results)
            return arena, jax.tree.unflatten(self.out_tree, results)

        step = with_arena_parameter(functools.update_wrapper(step, self.fn, updated=()))
        on_device = jax.sharding.SingleDeviceSharding(self.device())
        place = jax.ShapeDtypeStruct(arena.shape, arena.dtype, sharding=on_device)
        with _without_donation_warning():
            jitted = jax.jit(step, **carried_jit_options(self.plan_options(program), step))
            compiled = jitted.lower(place, *self.args, **self.kwargs).compile()
        return StepWithArena(
            compiled, jax.jit(lambda: empty_arena(arena), out_shardings=on_device)
        )

    def lower(self, program: Program) -> Any:
        """The lowering of a program that replaces the step.

        Without the warning about donated buffers that cannot be used: JAX has given it
        for the step as written.
        """
        with _without_donation_warning():
            lowered = self.jit(program).lower(*self.args, **self.kwargs)
        _compat.add_to_cache_key(lowered, _digest_of_names(program))
        return lowered

    def lower_as_written(self) -> Any:
        """The lowering of the step as written."""
        return self.traced.lower()

    def compile(self, program: Program) -> Any:
        if has_arena(program):
            return self.carrying(program)
        return self.compile_lowered(self.lower(program))

    def compile_to_read(self, program: Program) -> Any:
        """The executable of a program, to be read and never run: its bytes and its
        instructions are those of `compile`."""
        reading_options = dict(self.backend.reading_options)
        return self.compile_lowered(self.lower(program), reading_options)

    def compile_afresh(self, lowered: Any) -> Any:
        """The executable of a lowering, to be read and never run; compiled without JAX's
        compilation cache: an executable from there need not carry the buffer assignment."""
        with _compat.compiled_afresh(lowered):
            return self.compile_lowered(lowered, dict(self.backend.reading_options))

    def read_once(self, lowered: Any, compile_it: Callable[[], Any]) -> Any:
        """The result of `compile_it` for this lowering; for another with the same text and
        names, like that of the same body in two plans, the first result again."""
        text = lowered.as_text()  # With `_digest_of_names`.
        if text not in self._read_bodies:
            self._read_bodies[text] = compile_it()
        return self._read_bodies[text]

    def readable(self, program: Program, compiled: Any) -> Any:
        """The compiled program, or one of the same program compiled again if the first
        does not carry its buffer assignment."""
        may_be_cached = _compat.is_compilation_cache_enabled()
        if may_be_cached and not has_assignment(compiled):
            if not _compat.is_absent(self.device()):  # For absent devices XLA has none.
                return self.compile_afresh(self.lower(program))
        return compiled

    def compile_lowered(self, lowered: Any, options: dict[str, Any] | None = None) -> Any:
        """The executable of a version of the step, for the step's device.

        Arguments:
            lowered: from `lower` or `lower_as_written`.
            options: compiler options beyond the step's own.
        """
        self._compilations.append(None)
        jit_options = self.jit_options.get("compiler_options") or {}
        return self.backend.compile(lowered, self.device(), jit_options, options or {})

    @property
    def num_compilations(self) -> int:
        """Compilations by XLA so far: of the step as written and of all its programs."""
        return len(self._compilations)

    @property
    def backend(self) -> Backend:
        """The backend that compiles the step."""
        return backend_of(self.device())

    def device(self) -> Any:
        """One of the devices that the step runs on, the one with the smallest id."""
        devices = next(self._device_sets(), None)
        if devices is None:
            return _compat.default_device()
        return min(devices, key=lambda d: d.id)

    def num_devices(self) -> int:
        """The number of devices that its arguments lie on, or are to lie on."""
        return max(map(len, self._device_sets()), default=1)

    def processes(self) -> tuple[int, ...]:
        """Numbers of the processes whose devices the step runs on; none for absent ones."""
        found: set[Any] = set().union(*self._device_sets())
        present = [device for device in found if not _compat.is_absent(device)]
        return tuple(sorted({device.process_index for device in present}))

    def num_shards(self) -> int:
        """The number of devices that the values of its program are divided over."""
        return self.num_devices() if self.program.mapped is None else 1

    def _device_sets(self) -> Iterator[set[Any]]:
        yield from map(set, self.argument_devices)
        for shardings in _compat_jit.leaf_shardings(self.traced):
            for sharding in shardings:
                yield from _device_set(sharding)


def is_part_of_step() -> bool:
    """Whether the caller is being traced as a part of a step that is planned as one."""
    return _IS_PART.get()


def _trace_as_one(jitted: Any, args: tuple, kwargs: dict) -> Any:
    """A jitted function, traced; planned steps that it calls are as written there: their
    equations are planned with all others."""
    token = _IS_PART.set(True)
    try:
        return jitted.trace(*args, **kwargs)
    finally:
        _IS_PART.reset(token)


def _devices_of(leaves: list[Any]) -> tuple[frozenset[Any], ...]:
    known = (leaf for leaf in leaves if not _compat.is_traced([leaf]))
    shardings = (getattr(leaf, "sharding", None) for leaf in known)
    return tuple(frozenset(d) for sharding in shardings for d in _device_set(sharding))


def _device_set(sharding: Any) -> Iterator[set[Any]]:
    if isinstance(sharding, jax.sharding.Sharding):
        yield sharding.device_set


def _digest_of_names(program: Program) -> str:
    """A digest of the name scopes of all equations: plans are made from the names, so
    programs that compute the same under other names have keys of their own in the cache."""
    names = "\n".join(map(_compat.name_stack, program.eqns))
    return hashlib.sha256(names.encode()).hexdigest()


@contextlib.contextmanager
def _without_donation_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield
