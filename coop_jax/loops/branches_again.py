"""Branches again: a `cond` that runs again for its gradient runs inside of the gradient.

Differentiation makes two `cond`s of one: the first returns residuals, those that any of its
branches has, and the second, with the same index, reads them. Each branch of the second may
begin with the branch of the first instead. Residuals are then values inside of one branch,
alive from one equation to another, and no results that are alive as a whole between two
operations. Where an iteration runs the first one again and nobody else reads what it makes,
that takes no time: it is always so (`with_branches_again`). Elsewhere the branch runs twice
(`with_residuals_inside`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.loops.bodies import bodies_of, has_bodies, runs_of_bodies, with_bodies
from coop_jax.trace.costs import whole_bytes
from coop_jax.trace.cse import merge_equal, without_dead
from coop_jax.trace.program import CALLER, Program, consumers_of, reads, writes
from coop_jax.trace.purity import may_run_again


def with_branches_again(eqns: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Equations in which every `cond` that one later `cond` of the same index alone reads
    is part of that.

    Arguments:
        eqns: equations, in order.
        results: atoms that are read behind them.
    """
    eqns = list(eqns)
    number = len(eqns) - 1
    while number >= 0:  # From the last on: a gradient may take in several.
        reader = _only_reader(eqns, number, results)
        if reader is not None:
            eqns[reader] = _with_first_inside(eqns[number], eqns[reader])
            del eqns[number]
        number -= 1
    return eqns


def _only_reader(eqns: Sequence[Any], number: int, results: Sequence[Any]) -> int | None:
    """The place of the `cond` that takes in the one at a place; None if there is none."""
    first = eqns[number]
    if not _is_cond(first) or not may_run_again(first):
        return None
    made = set(writes(first))
    if any(v in made for v in results if not isinstance(v, Literal)):
        return None
    readers = [i for i, eqn in enumerate(eqns) if any(v in made for v in reads(eqn))]
    if len(readers) != 1:
        return None
    return readers[0] if _is_same_choice(first, eqns[readers[0]]) else None


def with_residuals_inside(program: Program) -> tuple[Program, list[Any]]:
    """A program whose `cond`s return no residuals, as far as that is fewer bytes: the
    gradients run their branches again. In bodies, too.

    Returns:
        The program, itself if nothing is changed; and the `cond`s that run again, each as
        often as it runs in a step.
    """
    eqns, again = list(program.eqns), []
    for number, eqn in enumerate(eqns):
        bodies = [with_residuals_inside(body) for body in bodies_of(eqn)]
        inside = [each for _, more in bodies for each in more]
        if inside:
            eqns[number] = with_bodies(eqn, [body for body, _ in bodies])
            again += inside * runs_of_bodies(eqn)
    for number in range(len(eqns) - 1, -1, -1):
        reader = _gradient(dataclasses.replace(program, eqns=tuple(eqns)), number)
        if reader is not None:
            first = eqns[number]
            again.append(first)
            eqns[reader] = _with_first_inside(first, eqns[reader])
            others = [v for i, eqn in enumerate(eqns) if i != number for v in reads(eqn)]
            eqns[number] = _with_results(first, {*others, *program.outvars})
    if not again:
        return program, []
    alive = tuple(without_dead(eqns, list(program.outvars)))
    return dataclasses.replace(program, eqns=alive), again


def _gradient(program: Program, number: int) -> int | None:
    """The place of the `cond` that alone reads some results of the one at a place, more
    bytes than the branches need to run again; None if there is none."""
    first = program.eqns[number]
    if not _is_cond(first) or not may_run_again(first):
        return None
    consumers = consumers_of(program)
    saved_bytes: collections.Counter[int] = collections.Counter()
    for v in writes(first):
        alone = list(set(consumers[v]))
        if len(alone) == 1 and alone[0] != CALLER:
            saved_bytes[alone[0]] += whole_bytes(v.aval)
    gradients = [i for i in saved_bytes if _is_same_choice(first, program.eqns[i])]
    if len(gradients) != 1:
        return None
    (place,) = gradients
    stays = {*program.invars, *program.constvars}
    longer = {
        v
        for v in reads(first)
        if v not in stays and CALLER not in consumers[v] and max(consumers[v]) < place
    }
    is_less = saved_bytes[place] > sum(whole_bytes(v.aval) for v in longer)
    return place if is_less else None


def _with_results(eqn: Any, read: set[Any]) -> Any:
    """A `cond` without the results that nobody reads."""
    numbers = [i for i, v in enumerate(eqn.outvars) if v in read]
    bodies = []
    for body in bodies_of(eqn):
        outvars = [body.outvars[i] for i in numbers]
        alive = tuple(without_dead(list(body.eqns), outvars))
        bodies.append(dataclasses.replace(body, outvars=tuple(outvars), eqns=alive))
    outvars = [eqn.outvars[i] for i in numbers]
    return with_bodies(eqn, bodies).replace(outvars=outvars)


def _is_cond(eqn: Any) -> bool:
    return eqn.primitive.name == "cond" and has_bodies(eqn)


def _is_same_choice(first: Any, second: Any) -> bool:
    """Whether two equations run the same one of as many branches."""
    return (
        _is_cond(first)
        and _is_cond(second)
        and second.invars[0] is first.invars[0]
        and len(second.params["branches"]) == len(first.params["branches"])
    )


def _with_first_inside(first: Any, second: Any) -> Any:
    """The second `cond` with what the first one is given in place of what it makes."""
    index, *given = first.invars
    made = {v: place for place, v in enumerate(first.outvars) if v in set(writes(first))}
    taken = [None if isinstance(v, Literal) else made.get(v) for v in second.invars[1:]]
    others = [v for v, place in zip(second.invars[1:], taken, strict=True) if place is None]
    branches = [
        _joint(before, after, taken)
        for before, after in zip(bodies_of(first), bodies_of(second), strict=True)
    ]
    return with_bodies(second, branches).replace(invars=[index, *given, *others])


def _joint(before: Program, after: Program, taken: Sequence[int | None]) -> Program:
    """A branch that runs two, one after the other.

    Arguments:
        before, after: the branches.
        taken: for each input of `after`, the number of the result of `before` that it is,
            or None for an input.
    """
    # The two may be one jaxpr: the inputs of the second get variables of their own.
    renamed = {
        var: _compat.new_var(var.aval) if place is None else before.outvars[place]
        for var, place in zip(after.invars, taken, strict=True)
    }
    inputs = [renamed[v] for v, p in zip(after.invars, taken, strict=True) if p is None]

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else renamed.get(atom, atom)

    eqns = [
        *before.eqns,
        *(eqn.replace(invars=[read(v) for v in eqn.invars]) for eqn in after.eqns),
    ]
    eqns, outvars = merge_equal(eqns, [read(v) for v in after.outvars])
    invars = (*before.invars, *inputs)
    return Program(
        constvars=(*before.constvars, *after.constvars),
        consts=(*before.consts, *after.consts),
        invars=invars,
        outvars=tuple(outvars),
        eqns=tuple(without_dead(eqns, outvars)),
        donated=(False,) * len(invars),
        debug_info=None,
    )
