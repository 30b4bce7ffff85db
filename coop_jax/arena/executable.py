"""Executable: a step whose arena, one buffer, is kept from call to call.

The rewritten program makes its arena itself (`coop_empty_arena`): a program that is lowered
has to, since its arguments are the step's. In the program that is called, the arena is a
donated argument and a result: it is allocated once. Calls from several threads have one
each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from coop_jax.arena.exchange import empty_arena_p, exchange_p
from coop_jax.trace.program import Program


def has_arena(program: Program) -> bool:
    """Whether the program makes an arena."""
    return bool(program.eqns) and program.eqns[0].primitive is empty_arena_p


def carried(program: Program) -> Program:
    """The program with its arena as the first argument, donated, and the first result."""
    make, *eqns = program.eqns
    exchanges = [eqn for eqn in eqns if eqn.primitive is exchange_p]
    return dataclasses.replace(
        program,
        eqns=tuple(eqns),
        invars=(make.outvars[0], *program.invars),
        outvars=(exchanges[-1].outvars[0], *program.outvars),
        donated=(True, *program.donated),
    )


def carried_jit_options(jit_options: dict[str, Any], step: Callable) -> dict[str, Any]:
    """Options of a step for the function that has the arena before its arguments.

    Arguments:
        jit_options: options of `jax.jit` for the step.
        step: the function, from `with_arena_parameter`.

    Returns:
        Options of `jax.jit`, with the arena donated.
    """
    options = dict(jit_options)
    if "static_argnums" in options:
        options["static_argnums"] = _one_further(options["static_argnums"])
    if "donate_argnums" in options:
        donated = _one_further(options["donate_argnums"])
    else:
        # With positions given, `jax.jit` looks for none of the names itself.
        donated = _positions(step, options.get("donate_argnames", ()))
    options["donate_argnums"] = (0, *donated)
    shardings = options.get("in_shardings")
    if isinstance(shardings, (tuple, list)):
        options["in_shardings"] = (None, *shardings)
    if options.get("out_shardings") is not None:
        options["out_shardings"] = (None, options["out_shardings"])
    return options


def _one_further(argnums: int | Sequence[int]) -> tuple[int, ...]:
    """The positions with one more argument in front; negative ones count from the end."""
    given = (argnums,) if isinstance(argnums, int) else argnums
    return tuple(i + 1 if i >= 0 else i for i in given)


def _positions(step: Callable, argnames: str | Iterable[str]) -> tuple[int, ...]:
    """Positions of the parameters of these names."""
    names = (argnames,) if isinstance(argnames, str) else tuple(argnames)
    if not names:
        return ()
    parameters = inspect.signature(step).parameters.values()
    return tuple(
        i
        for i, parameter in enumerate(parameters)
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name in names
    )


def with_arena_parameter(step: Any) -> Any:
    """A wrapped step whose signature says that the arena comes first.

    `jax.jit` finds the positions of arguments given by name in the signature.
    """
    try:
        signature = inspect.signature(step)
    except (ValueError, TypeError):
        return step
    arena = inspect.Parameter("coop_arena", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [arena, *signature.parameters.values()]
    step.__signature__ = signature.replace(parameters=parameters)
    return step


class StepWithArena:
    """A compiled step that keeps its arena from call to call.

    Arguments:
        compiled: takes an arena and the step's arguments; returns an arena and results.
        make: makes an arena.
    """

    def __init__(self, compiled: Any, make: Callable[[], jax.Array]) -> None:
        self.compiled = compiled
        self._make = make
        self._idle: list[jax.Array] = []
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            arena = self._idle.pop() if self._idle else None
        # After an error the arena is donated and gone; the next call makes another.
        if arena is None or _has_failed(arena):
            arena = self._make()
        arena, results = self.compiled(arena, *args, **kwargs)
        with self._lock:
            self._idle.append(arena)
        return results

    def wait(self) -> None:
        """Block until the calls so far have finished."""
        with self._lock:
            idle = list(self._idle)
        for arena in idle:
            arena.block_until_ready()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiled, name)

    def release(self) -> None:
        """Give the memory of idle arenas back; the next call allocates again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for arena in idle:
            with contextlib.suppress(RuntimeError):  # deleted by its device
                arena.delete()


def _has_failed(arena: Any) -> bool:
    """Whether the call that returns the arena failed. False while that call is running:
    then the next call fails with it, and the one after that does not."""
    try:
        if arena.is_ready():
            arena.block_until_ready()
    except RuntimeError:
        return True
    return False
