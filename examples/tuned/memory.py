"""Memory of results: what was planned, packed or compiled once is not again.

Most values change few decisions, so that most plans and compilations are those of the
unchanged package. The time that each took is remembered with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from coop_jax import _ext
from coop_jax.compile.traced_step import TracedStep
from coop_jax.trace.program import Program

_OF_THE_CORE = ("plan", "minimum_pool", "pack")


class Memory:
    """Results by their arguments.

    Attributes:
        seconds: of the core's functions, counted whenever they are asked for.
        own_seconds: that were spent in here, compilations included.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, float]] = {}
        self._digests: dict[int, tuple[Any, bytes]] = {}  # With the object: ids are unique.
        self.seconds = 0.0
        self.own_seconds = 0.0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """The package with this memory."""
        compile_program = TracedStep.compile

        def compiled(traced: TracedStep, program: Program) -> Any:
            key = ("compile", id(traced.traced), _digest_of_program(program))
            return self._remembered(key, lambda: compile_program(traced, program))[0]

        with contextlib.ExitStack() as stack:
            for name in _OF_THE_CORE:
                function = self._counted(name, getattr(_ext, name))
                stack.enter_context(mock.patch.object(_ext, name, function))
            stack.enter_context(mock.patch.object(TracedStep, "compile", compiled))
            yield

    def _counted(self, name: str, function: Callable) -> Callable:
        def counted(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(enumerate(args)), **kwargs}
            key = (name, *((name, self._digest(x)) for name, x in given.items()))
            result, seconds = self._remembered(key, lambda: function(*args, **kwargs))
            self.seconds += seconds
            return result

        return counted

    def _remembered(self, key: Any, make: Callable[[], Any]) -> tuple[Any, float]:
        start = time.thread_time()
        if key not in self._known:
            try:
                made = make()
            except Exception as error:  # Raised every time.
                made = error
            self._known[key] = made, time.thread_time() - start
        self.own_seconds += time.thread_time() - start
        made, seconds = self._known[key]
        if isinstance(made, Exception):
            raise made
        return made, seconds

    def _digest(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x.tobytes()
        if not isinstance(x, _ext.Graph):
            return repr(x)
        if id(x) not in self._digests:
            sha = hashlib.sha256()
            for name, array in sorted(x.arrays().items()):
                sha.update(f"{name} {getattr(array, 'shape', None)}".encode())
                if array is not None:
                    sha.update(np.ascontiguousarray(array).tobytes())
            self._digests[id(x)] = x, sha.digest()
        return self._digests[id(x)][1]


def _digest_of_program(program: Program) -> bytes:
    names = "\n".join(str(eqn.source_info.name_stack) for eqn in program.eqns)
    return hashlib.sha256(f"{program.to_jaxpr()}\n{names}".encode()).digest()
