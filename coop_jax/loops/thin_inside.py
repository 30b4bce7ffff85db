"""Thin inside: inner loops of an iteration keep little across the gap of the outer loops.

The forward body may have a loop of its own whose gradient is a loop of the backward body
(layers over time, chunks of attention in layers). What the inner loop stacks as written is
kept for the backward body as a whole, or the loop runs again. Of all that an iteration of
the inner loops can keep, the choice of the least time keeps fewer bytes: products, and what
is made of them is made again inside of the inner backward loop. So the inner loops are
written that way first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from coop_jax.base._compat import Literal
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.frontier import frontier
from coop_jax.loops.iteration import Iteration, divided
from coop_jax.loops.pairs import find_pairs
from coop_jax.loops.parts import PlannedPair, mixture
from coop_jax.targets import Target
from coop_jax.trace.program import Program, reads, writes
from coop_jax.trace.purity import may_run_again


def with_thin_loops(iteration: Iteration, target: Target) -> Iteration:
    """The iteration with inner loops that keep what takes the least time, where that is
    fewer bytes than they stack as they are written; itself if there are none."""
    program = _joint(iteration)
    planned = list(_thinner(iteration, program, target))
    if not planned:
        return iteration
    thin = with_planned_pairs(program, planned, are_marked=False)
    if thin.constvars != program.constvars:
        return iteration  # An iteration has the constants of its two bodies alone.
    body = iteration.pair.forward.body
    own = {v for eqn in iteration.forward for v in writes(eqn)}
    early, late = divided(list(thin.eqns), {*body.constvars, *body.invars}, own)
    renamed = dict(zip(map(id, program.outvars), thin.outvars, strict=True))
    return dataclasses.replace(
        iteration,
        forward=tuple(early),
        backward=tuple(late),
        forward_results=tuple(renamed.get(id(v), v) for v in iteration.forward_results),
        backward_results=tuple(renamed[id(v)] for v in iteration.backward_results),
        inside=tuple(planned),
    )


def _thinner(
    iteration: Iteration, program: Program, target: Target
) -> Iterator[PlannedPair]:
    """The inner pairs across the gap, each at the choice of the least time."""
    gap = len(iteration.forward)
    for pair in find_pairs(program):
        is_across = pair.forward_index < gap <= pair.backward_index
        if not is_across or not may_run_again(pair.forward.eqn):
            continue
        inner = with_thin_loops(Iteration.of(pair, (), target), target)
        first = frontier(inner, target)[0]
        if first.kept_bytes * pair.length < pair.residual_bytes:
            yield mixture(inner, first, first, 0)


def _joint(iteration: Iteration) -> Program:
    """The iteration as a program whose arguments are all that it is given. What the outer
    forward loop stacks for its backward loop alone is no result."""
    eqns = (*iteration.forward, *iteration.backward)
    outvars = (*_results(iteration), *iteration.backward_results)
    made = {v for eqn in eqns for v in writes(eqn)}
    read = [v for eqn in eqns for v in reads(eqn)]
    read += [v for v in outvars if not isinstance(v, Literal)]
    given = tuple(dict.fromkeys(v for v in read if v not in made))
    return Program((), (), given, outvars, eqns, (False,) * len(given), None)


def _results(iteration: Iteration) -> list[Any]:
    """What the forward loop carries on, and stacks for others than its backward loop."""
    pair = iteration.pair
    first = pair.forward.num_carry
    return [
        v
        for number, v in enumerate(iteration.forward_results)
        if number < first or number - first not in pair.residuals
    ]
