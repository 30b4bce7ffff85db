"""Run parts: a loop that is divided into parts, as `lax.scan`s."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from coop_jax.base import _compat_typed
from coop_jax.loops.loop import Loop
from coop_jax.loops.marks import loops_of_group
from coop_jax.loops.part_body import PartBody
from coop_jax.loops.parts import Part


def run_parts(
    loop: Loop,
    parts: Sequence[Part],
    bodies: Sequence[PartBody],
    given: Mapping[Any, Any],
    init: Sequence[Any],
    own: Sequence[Sequence[Any]],
) -> list[Any]:
    """The results of a loop whose parts have different bodies.

    Arguments:
        loop: the loop as written.
        parts, bodies: the parts, in order of their entries, and the body of each.
        given: by variable of the bodies, constants and stacks of all iterations.
        init: the carried values before the loop.
        own: for every part, the stacks that are its own.

    Returns:
        What is carried, the stacks of all iterations that the loop writes, and for every
        part the stacks of its `own_out`.
    """
    if len(parts) == 1 and parts[0].group == 1:
        return _run_whole(loop, bodies[0], given, init, own[0])
    return _run_several(loop, parts, bodies, given, list(init), own)


def _run_whole(
    loop: Loop,
    body: PartBody,
    given: Mapping[Any, Any],
    init: Sequence[Any],
    own: Sequence[Any],
) -> list[Any]:
    """The results of a loop with one body; arguments as of `run_parts`."""
    consts = [given[v] for v in body.consts]
    num_carry = len(init)

    def step(carry, entries):
        results = body.run(*consts, *carry, *entries)
        return results[:num_carry], results[num_carry:]

    carry, stacks = lax.scan(
        step,
        list(init),
        [*(given[v] for v in body.entries), *own],
        length=loop.length,
        reverse=loop.is_reversed,
        unroll=loop.unroll if loop.num_trips > 1 else _unroll(loop, loop.length),
    )
    return [*carry, *stacks]


def _run_several(loop, parts, bodies, given, init, own) -> list[Any]:
    whole = [_compat_typed.zeros_of(aval) for aval in bodies[0].written]
    state, own_out = (init, whole), [[] for _ in parts]
    order = range(len(parts))
    for number in reversed(order) if loop.is_reversed else order:
        part, body = parts[number], bodies[number]
        run = _run_part if part.group == 1 else _run_groups
        state, own_out[number] = run(loop, part, body, given, state, own[number])
    carried, whole = state
    return [*carried, *whole, *(stack for stacks in own_out for stack in stacks)]


def _run_part(loop, part, body, given, state, own) -> tuple[Any, list[Any]]:
    return _scan_counting(
        _step_at_offset(body, given, len(state[0])),
        state,
        own,
        _Count.of(part.start, part.count, is_reversed=loop.is_reversed),
        unroll=_unroll(loop, part.count),
    )


def _run_groups(loop, part, body, given, state, own) -> tuple[Any, list[Any]]:
    """A part whose own stacks have one entry per group: what is carried into it.

    The forward loop stacks just that. The backward loop runs each group forward again,
    which stacks what is retained, and then backward.
    """

    def group(first, state, start):
        with loops_of_group():
            return one_group(first, state, start)

    def one_group(first, state, start):
        before, kept = list(state[0]), []
        if body.again is not None:
            _, kept = _scan_counting(
                _step_at_offset(body.again, given, len(start)),
                (start, []),
                [],
                _Count.of(first, part.group, is_reversed=body.again.is_reversed),
            )
        state, _ = _scan_counting(
            _step_at_offset(body, given, len(state[0])),
            state,
            kept,
            _Count.of(first, part.group, is_reversed=loop.is_reversed),
            unroll=_unroll(loop, part.group),
        )
        return state, before if body.again is None else []

    num_groups = part.count // part.group
    count = _Count.of(part.start, num_groups, part.group, is_reversed=loop.is_reversed)
    return _scan_counting(group, state, own, count)


@dataclasses.dataclass(frozen=True)
class _Count:
    """Indices of entries, in the order of a loop's iterations."""

    first: Any
    step: int
    length: int

    @classmethod
    def of(cls, start: Any, length: int, step: int = 1, *, is_reversed: bool) -> _Count:
        """`length` indices from `start` on, `step` apart, or the same from the last one."""
        if is_reversed:
            return cls(start + (length - 1) * step, -step, length)
        return cls(start, step, length)


def _scan_counting(
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    state: Any,
    stacks: Any,
    count: _Count,
    *,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """`lax.scan` of a step that is given the index of its entry as well.

    The index is carried. An array of indices would be one operand of all slices of stacks
    at an offset; XLA:GPU then merges what reads them in one kernel, which is too early for
    some, so that more values are alive than in the loop as written.
    """

    def counted(carry, entries):
        index, state = carry
        state, results = step(index, state, entries)
        return (index + count.step, state), results

    (_, state), results = lax.scan(
        counted,
        (jnp.asarray(count.first, jnp.int32), state),
        stacks,
        length=count.length,
        reverse=count.step < 0,
        unroll=unroll,
    )
    return state, results


def _step_at_offset(body: PartBody, given: Mapping[Any, Any], num_carry: int) -> Any:
    consts = [given[v] for v in body.consts]
    num_written = len(body.written)

    def step(index, state, own_entries):
        carry, whole = state
        entries = [
            lax.dynamic_index_in_dim(given[v], index, 0, keepdims=False)
            for v in body.entries
        ]
        results = body.run(*consts, *carry, *entries, *own_entries)
        written = results[num_carry : num_carry + num_written]
        whole = [
            lax.dynamic_update_index_in_dim(stack, value, index, 0)
            for stack, value in zip(whole, written, strict=True)
        ]
        return (results[:num_carry], whole), results[num_carry + num_written :]

    return step


def _unroll(loop: Loop, count: int) -> int:
    """The iterations that one trip of a part's loop makes: the most, up to those of the
    loop as written, with two trips or more and no iteration left over.

    XLA takes a loop of one trip apart, and what is left over lies outside: recomputation is
    then merged with the first computation, and nothing is saved.
    """
    most = min(loop.unroll, count // 2)
    return max((u for u in range(2, most + 1) if count % u == 0), default=1)
