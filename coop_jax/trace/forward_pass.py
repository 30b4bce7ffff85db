"""Forward pass: the equations of a step that are not on its way back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coop_jax.trace.program import reads, writes


def forward_pass(eqns: Sequence[Any], after: int) -> list[int]:
    """The equations of the forward pass, by index.

    Behind a point at its end follow some that belong to it: those that no longer path of
    equations leads to than to what was made before. Such are the targets of a language
    model, made of its tokens, and the sum of what layers add to the loss.

    Arguments:
        eqns: of the step.
        after: the index of the last equation before the point.
    """
    lengths = lengths_of_paths(eqns)
    turn = max(lengths[: after + 1])
    late = range(after + 1, len(lengths))
    return [*range(after + 1), *(i for i in late if lengths[i] <= turn)]


def lengths_of_paths(eqns: Iterable[Any]) -> list[int]:
    """By equation the number of equations on the longest path that ends with it."""
    length: dict[Any, int] = {}
    found = []
    for eqn in eqns:
        found.append(1 + max((length.get(v, 0) for v in reads(eqn)), default=0))
        length.update(dict.fromkeys(writes(eqn), found[-1]))
    return found
