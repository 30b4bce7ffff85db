"""Memory figures: XLA's own bytes of a compiled step on one device."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax

# XLA:TPU compiles nothing that exceeds the chip's memory; the error has the bytes.
_REFUSED = (
    re.compile(r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds"),  # arguments included
    re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm"),
)
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class MemoryFigures:
    """XLA's own figures for a compiled step, in bytes, for one device.

    Attributes:
        argument_bytes, output_bytes: buffers of arguments and results.
        alias_bytes: results that take over the memory of donated arguments.
        temp_bytes: temporaries.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Bytes that no plan can change: arguments and results, counted once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes that the budget is compared with.

        Added up from the parts: on CPU, XLA's `peak_memory_in_bytes` leaves the
        temporaries out (JAX 0.10 and 0.12).
        """
        return self.fixed_bytes + self.temp_bytes


def memory_figures(compiled: Any) -> MemoryFigures:
    """The figures of a `jax.stages.Compiled`."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        raise NotImplementedError(
            "`coop_jax` needs XLA's memory figures, and this platform's "
            "`Compiled.memory_analysis()` returns None. Plan for a platform that "
            "reports them (CPU, CUDA, TPU)."
        )
    return MemoryFigures(
        argument_bytes=analysis.argument_size_in_bytes,
        output_bytes=analysis.output_size_in_bytes,
        alias_bytes=analysis.alias_size_in_bytes,
        temp_bytes=analysis.temp_size_in_bytes,
    )


def compile_measured(compile_step: Callable[[], Any]) -> tuple[Any, int]:
    """Compile a step and measure its bytes.

    Arguments:
        compile_step: returns a `jax.stages.Compiled`, or an object with the same
            methods and `is_refused`.

    Returns:
        The result of `compile_step` and XLA's figure for it in bytes; or None and the
        bytes that the step would need, if XLA refuses to compile it because the device
        cannot hold it.
    """
    compiled, total_bytes = _compile(compile_step)
    return (None if _is_refused(compiled) else compiled), total_bytes


def compile_to_read(compile_step: Callable[[], Any]) -> Any:
    """Compile, to read the stored values; None if XLA refuses and publishes none."""
    return _compile(compile_step)[0]


def _compile(compile_step: Callable[[], Any]) -> tuple[Any, int]:
    """The executable with its bytes; None with those of the error if XLA refuses."""
    try:
        compiled = compile_step()
    except jax.errors.JaxRuntimeError as error:
        needed = _refused_bytes(str(error))
        if needed is None:
            raise
        return None, needed
    return compiled, memory_figures(compiled).total_bytes


def _is_refused(compiled: Any) -> bool:
    """Whether a step was compiled only up to its buffers and was refused then."""
    return getattr(compiled, "is_refused", False)


def _refused_bytes(message: str) -> int | None:
    for pattern in _REFUSED:
        match = pattern.search(message)
        if match is not None:
            return int(float(match[1]) * _SUFFIXES[match[2]])
    return None
