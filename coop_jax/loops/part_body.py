"""Part body: one iteration of one loop of a part, as a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.loops.branches_again import with_branches_again
from coop_jax.loops.frontier import Retained
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.loop import Loop
from coop_jax.loops.parts import Part
from coop_jax.trace.cse import without_dead
from coop_jax.trace.in_shard_maps import runnable
from coop_jax.trace.program import Program, reads


@dataclasses.dataclass(frozen=True, eq=False)
class PartBody:
    """One iteration of a loop, as a function of variables of the bodies as written.

    Attributes:
        run: the function of the values of `consts`, `carry`, `entries`, `own_in`; returns
            what is carried, entries of the stacks that the loop writes as a whole, and
            values for `own_out`, as one list.
        consts: constants.
        carry: carried values.
        entries: entries of stacks of all iterations.
        own_in: entries of the part's own stacks.
        own_out: values that the part's own stacks are made of.
        written: types of the stacks that the loop writes as a whole.
        is_reversed: whether it is of a loop that runs from the last entry to the first.
        again: of the backward loop of a part with groups, the forward body that runs again.
    """

    run: Callable[..., list[Any]]
    consts: list[Any]
    carry: list[Any]
    entries: list[Any]
    own_in: list[Any]
    own_out: list[Any]
    written: list[Any]
    is_reversed: bool
    again: PartBody | None = None


def forward_body(iteration: Iteration, part: Part) -> PartBody:
    """The forward body that stacks what is retained, or nothing in a part with groups."""
    pair = iteration.pair
    loop = pair.forward
    results = list(iteration.forward_results)
    carried, stacked = results[: loop.num_carry], results[loop.num_carry :]
    whole = [v for number, v in enumerate(stacked) if number not in pair.residuals]
    own_out = own_values(iteration, part.retained) if part.group == 1 else []
    written = [
        v.aval
        for number, v in enumerate(loop.stacks_written)
        if number not in pair.residuals
    ]
    body = _body(loop, iteration, iteration.forward, [*carried, *whole], [], own_out)
    return dataclasses.replace(body, written=written)


def backward_body(iteration: Iteration, part: Part) -> PartBody:
    """The backward body that reads what is retained and makes the rest again."""
    loop = iteration.pair.backward
    eqns = [*iteration.run_again(part.retained.recomputed), *iteration.backward]
    own_in = own_values(iteration, part.retained)
    results = list(iteration.backward_results)
    eqns = with_branches_again(without_dead(eqns, results), results)
    body = _body(loop, iteration, eqns, results, own_in, [])
    return dataclasses.replace(
        body,
        written=[v.aval for v in loop.stacks_written],
        again=None if part.group == 1 else _again_body(iteration, own_in),
    )


def _again_body(iteration: Iteration, own_out: list[Any]) -> PartBody:
    loop = iteration.pair.forward
    carried = list(iteration.forward_results[: loop.num_carry])
    return _body(loop, iteration, iteration.forward, carried, [], own_out)


def own_values(iteration: Iteration, retained: Retained) -> list[Any]:
    """The retained values that take a stack of their own, in the order of the program."""
    loop = iteration.pair.forward
    elsewhere = {*loop.body.constvars, *loop.body_consts, *loop.body_entries}
    elsewhere |= iteration.stacked_anyway.keys()
    made = [v for eqn in iteration.forward for v in eqn.outvars]
    in_order = [*loop.body_carry, *made]
    return [v for v in in_order if v in retained.values and v not in elsewhere]


def _body(
    loop: Loop,
    iteration: Iteration,
    eqns: Iterable[Any],
    results: list[Any],
    own_in: list[Any],
    own_out: list[Any],
) -> PartBody:
    pair = iteration.pair
    eqns = without_dead(list(eqns), [*results, *own_out])
    needed = {v for eqn in eqns for v in reads(eqn)}
    needed |= {v for v in [*results, *own_out] if not isinstance(v, Literal)}
    loops = {id(loop): loop, id(pair.forward): pair.forward}.values()

    def among(variables: Iterable[Any]) -> list[Any]:
        return [v for v in dict.fromkeys(variables) if v in needed]

    made = {v for eqn in eqns for v in eqn.outvars}
    carry = loop.body_carry
    consts = among(v for each in loops for v in each.body_consts)
    entries = among(v for each in loops for v in each.body_entries)
    if loop is not pair.forward:
        anyway = [v for v in iteration.stacked_anyway if v not in made]
        known = {*consts, *entries, *own_in, *carry}
        entries += [v for v in among(anyway) if v not in known]
    constants = [
        (v, c)
        for body in (pair.forward.body, pair.backward.body)
        for v, c in zip(body.constvars, body.consts, strict=True)
        if v in needed
    ]
    inputs = [*consts, *carry, *entries, *own_in]
    program = Program(
        constvars=tuple(v for v, _ in constants),
        consts=tuple(c for _, c in constants),
        invars=tuple(inputs),
        outvars=(*results, *own_out),
        eqns=tuple(eqns),
        donated=(False,) * len(inputs),
        debug_info=None,
    )
    run = runnable(program)
    return PartBody(run, consts, carry, entries, own_in, own_out, [], loop.is_reversed)
