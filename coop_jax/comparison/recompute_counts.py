"""Recompute counts: the number of times that a step computes each equation.

The steps of a comparison recompute in different ways: `jax.checkpoint` in calls that its
lowering puts behind barriers, coop_jax behind fences. Both are barriers that XLA does not
merge across. So every step is counted in the same two readings of its jaxpr: with the
barriers in place, equal equations merged between them (the program that runs), and
without, all equal equations merged (the program of a step without recomputation). An
equation of the second is executed as often as it occurs in the first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.emit.fence import fence_equation
from coop_jax.trace.costs import flops
from coop_jax.trace.cse import equation_key
from coop_jax.trace.inline import CHECKPOINTS, flatten
from coop_jax.trace.mapped import with_body_of_map
from coop_jax.trace.program import Program, all_equations
from coop_jax.trace.replacements import original

_BARRIERS = ("coop_fence", "coop_after", "optimization_barrier")


@dataclasses.dataclass(frozen=True, eq=False)
class Executed:
    """The executed equations of a step.

    Attributes:
        program: the step without recomputation: every equation once, no barriers.
        times: the number of executions in the step, by equation of `program`.
        flops: floating point operations of the whole step, recomputation included.
    """

    program: Program
    times: tuple[int, ...]
    flops: int


def executed(closed: Any, donated: tuple[bool, ...]) -> Executed:
    """The executed equations of a traced step, counted.

    Arguments:
        closed: the step's closed jaxpr, as `jax.jit(step).trace(...).jaxpr` gives it.
        donated: one flag per input.
    """
    numbers = itertools.count()

    def barrier(before: Sequence[Any], after: Sequence[Any]) -> Any:
        # Numbered, so that no two barriers are equal and merge.
        return fence_equation(before, after, -1 - next(numbers))

    program = flatten(closed, donated, barrier=barrier)
    program = with_body_of_map(program, barrier=barrier)
    same: dict[Any, Any] = {}
    first_of: dict[Any, int] = {}
    eqns: list[Any] = []
    times: Counter[int] = Counter()
    total_flops = 0

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else same.get(atom, atom)

    for eqn in program.eqns:
        invars = [read(v) for v in eqn.invars]
        if eqn.primitive.name in _BARRIERS:
            # Operands that only have to be computed before have no result.
            same.update(zip(eqn.outvars, invars, strict=False))
            continue
        eqn = original(eqn.replace(invars=invars))
        total_flops += flops(eqn)
        key = equation_key(eqn)
        index = len(eqns) if key is None else first_of.setdefault(key, len(eqns))
        times[index] += 1
        if index == len(eqns):
            eqns.append(eqn)
            continue
        first = eqns[index]
        kept = [
            # The first execution may drop a result that this one needs.
            mine if isinstance(theirs, _compat.DropVar) else theirs
            for mine, theirs in zip(eqn.outvars, first.outvars, strict=True)
        ]
        eqns[index] = first.replace(outvars=kept)
        same.update(
            (mine, result)
            for mine, result in zip(eqn.outvars, kept, strict=True)
            if mine is not result
        )
    merged = dataclasses.replace(
        program, eqns=tuple(eqns), outvars=tuple(read(v) for v in program.outvars)
    )
    return Executed(merged, tuple(times[i] for i in range(len(eqns))), total_flops)


def saved_names(closed: Any) -> frozenset[str]:
    """The names that `jax.ad_checkpoint.checkpoint_name` gave to values of a step."""
    return frozenset(
        eqn.params["name"] for eqn in all_equations(closed) if eqn.primitive.name == "name"
    )


def has_barriers_in_loops(closed: Any) -> bool:
    """Whether a barrier, of a differentiated `jax.checkpoint` or the user's own, stands in
    the body of a loop."""
    return any(
        recomputes(body) or any(e.primitive.name in _BARRIERS for e in all_equations(body))
        for eqn in all_equations(closed)
        if eqn.primitive.name in ("scan", "while")
        for body in eqn.params.values()
        if _compat.is_jaxpr(body)
    )


def recomputes(closed: Any) -> bool:
    """Whether a step holds a `jax.checkpoint` that was differentiated."""
    return any(
        eqn.primitive.name in CHECKPOINTS and eqn.params.get("differentiated")
        for eqn in all_equations(closed)
    )
