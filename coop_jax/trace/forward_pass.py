"""Forward pass: the equations of a step that are not on its way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again


def forward_pass(eqns: Sequence[Any], after: int) -> list[int]:
    """The equations of the forward pass, by index.

    Behind a point at its end follow some that belong to it: those that no longer path of
    equations leads to than to what was made before, and that read nothing of it but numbers
    and what is made of the step's inputs. Such are what layers add to the loss, summed, and
    the targets of a language model, made of its tokens.

    Arguments:
        eqns: of the step.
        after: the index of the last equation before the point.
    """
    lengths = lengths_of_paths(eqns)
    turn = max(lengths[: after + 1])
    found = list(range(after + 1))
    early = eqns[: after + 1]
    others = {v for eqn in early for v in writes(eqn)} - derived_from_inputs(early)
    for index in range(after + 1, len(eqns)):
        read = (v for v in reads(eqns[index]) if v in others)
        if lengths[index] <= turn and all(v.aval.size == 1 for v in read):
            found.append(index)
        else:
            others.update(writes(eqns[index]))
    return found


def end_of_forward_pass(eqns: Sequence[Any], peak: int) -> int:
    """The index of the last equation of the forward pass that a peak of memory belongs to;
    the peak itself where no equation is part of a gradient that JAX made.

    The peak may be anywhere on the way back: where the first layers have the largest
    values, it is near its end. A step may have several gradients, one behind the other.

    Arguments:
        eqns: of the step.
        peak: the index of the equation at which most is alive.
    """
    made_by = [_compat.last_transformation(eqn) for eqn in eqns]
    back = [index for index, name in enumerate(made_by) if name == "transpose"]
    if not back:
        return peak
    # The first way back that has not ended before the peak, or else the last one.
    at = next((index for index in back if index >= peak), back[-1])
    forward = (i for i in reversed(range(at)) if made_by[i] == "jvp")
    return next(forward, peak)


def derived_from_inputs(early: Sequence[Any]) -> set[Any]:
    """Values that fusible equations make of inputs and constants alone: masks, casts.

    Arguments:
        early: the first equations of a step.
    """
    made = {v for eqn in early for v in writes(eqn)}
    found: set[Any] = set()
    for eqn in early:
        known = all(v in found or v not in made for v in reads(eqn))
        if known and is_fusible(eqn) and may_run_again(eqn):
            found.update(writes(eqn))
    return found


def lengths_of_paths(eqns: Iterable[Any]) -> list[int]:
    """By equation the number of equations on the longest path that ends with it."""
    length: dict[Any, int] = {}
    found = []
    for eqn in eqns:
        found.append(1 + max((length.get(v, 0) for v in reads(eqn)), default=0))
        length.update(dict.fromkeys(writes(eqn), found[-1]))
    return found
