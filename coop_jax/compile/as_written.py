"""As written: the step before any plan, compiled for its bytes and its stored values."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any, NamedTuple

from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph.stored_values import StoredValues, tag
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program
from coop_jax.xla.memory_figures import compile_measured, compile_to_read, memory_figures

# Bytes of XLA's temporaries beyond the buffers that it lists count as fixed up to this
# part of the temporaries: one over this number.
_MOST_UNLISTED = 10


class AsWritten(NamedTuple):
    """A step before any plan.

    Attributes:
        compiled: the step as the user wrote it; None where XLA refuses to compile a step
            that the device cannot hold.
        total_bytes: the bytes that it needs, by XLA's figures.
        tagged: the flat program with the number of every equation as a name scope, whose
            buffer assignment shows the stored values; None as `compiled`. The two differ:
            inlining dissolves the user's `jax.checkpoint`s, and merging equal broadcasts
            early already saves memory.
        runs: whether `compiled` may run; else it was compiled to be read.
    """

    compiled: Any
    total_bytes: int
    tagged: Any
    runs: bool = True


def compile_both(traced: TracedStep, *, to_run: bool = True) -> AsWritten:
    """The step as written and its tagged flat program, compiled side by side.

    Arguments:
        to_run: whether the step as written may be what is asked for; else it is compiled
            for its figure alone, in less time.
    """
    options = {} if to_run else dict(traced.backend.reading_options)
    lowered = traced.lower_as_written()
    tagged = traced.lower(tag(traced.program))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(_compile_tagged, traced, tagged)
        compiled, total_bytes = compile_measured(
            lambda: traced.compile_lowered(lowered, options)
        )
        return AsWritten(compiled, total_bytes, future.result(), not options)


def compile_in_turn(traced: TracedStep, keeps: Callable[[int], bool]) -> AsWritten:
    """`compile_both`, the tagged flat program first: mostly the two need the same bytes, so
    where that does not keep the budget the step as written is compiled for its figure
    alone. That takes less time of the processor, and is not side by side.

    Arguments:
        keeps: whether so many bytes keep the budget.
    """
    if not traced.backend.reading_options:
        return compile_both(traced)
    tagged = compile_tagged(traced)
    to_run = tagged is None or keeps(memory_figures(tagged).total_bytes)
    options = {} if to_run else dict(traced.backend.reading_options)
    lowered = traced.lower_as_written()
    compiled, total_bytes = compile_measured(
        lambda: traced.compile_lowered(lowered, options)
    )
    return AsWritten(compiled, total_bytes, tagged, not options)


def compile_tagged(traced: TracedStep) -> Any:
    """The flat program with the number of every equation as a name scope, compiled; None
    where XLA refuses."""
    return _compile_tagged(traced, traced.lower(tag(traced.program)))


def compile_tagged_once(traced: TracedStep) -> Any:
    """`compile_tagged` of a body, which may be in several plans of one step."""
    lowered = traced.lower(tag(traced.program))
    return traced.read_once(lowered, lambda: _compile_tagged(traced, lowered))


def _compile_tagged(traced: TracedStep, lowered: Any) -> Any:
    return compile_to_read(lambda: traced.compile_afresh(lowered))


def unplanned_bytes(tagged: Any, stored: StoredValues, *, of_plans: bool = False) -> int:
    """Fixed bytes: arguments, results, and the buffers that XLA needs beside the planned
    values, in the step as written or in its plans.

    For a step whose values mostly lie in a TPU's VMEM, nearly all temporaries are unlisted
    and not fixed at all: counted, they would refuse budgets that XLA keeps.

    Arguments:
        tagged: the compiled tagged step.
        stored: its stored values.
        of_plans: count the unlisted bytes that only plans have, too.
    """
    figures = memory_figures(tagged)
    most = figures.temp_bytes // _MOST_UNLISTED
    unlisted_bytes = stored.unlisted_bytes
    if of_plans:
        unlisted_bytes += stored.more_unlisted_of_plans
    return figures.fixed_bytes + min(unlisted_bytes, most) + stored.kept_constant_bytes


def predicted_fixed_bytes(program: Program) -> int:
    """Bytes of arguments and results of a program, aliased ones counted once."""
    inputs = sum(aval_bytes(v.aval) for v in program.invars)
    outputs = sum(aval_bytes(v.aval) for v in program.outvars)
    donated = sum(
        aval_bytes(v.aval)
        for v, is_donated in zip(program.invars, program.donated, strict=True)
        if is_donated
    )
    return inputs + max(0, outputs - donated)


def least_fixed_bytes(traced: TracedStep) -> int:
    """Bytes of arguments and results that a device has at least; 0 where several devices
    have a part of them each."""
    return 0 if traced.num_devices() > 1 else predicted_fixed_bytes(traced.program)
