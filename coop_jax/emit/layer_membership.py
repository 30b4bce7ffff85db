"""Layer membership: which layer an equation that runs again belongs to.

In a program the equations of a layer need not stand together. Tracing makes equal constants
once, for the layer that needs them first; a mask is made in the first layer and read in
all; the casts of a layer's weights may stand where the layer before ends, and the targets
of a language model at the start of the step. So an equation belongs to the layer in which
its results are read on the way forward, and to none where they are read in several: no
layer begins again because of it.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from coop_jax.trace.program import Program, reads, writes


def layer_membership(
    program: Program,
    forward: Sequence[int],
    ends: Sequence[int],
    again: Collection[int],
    kept: Collection[Any],
) -> dict[int, int | None]:
    """By equation that runs again the number of its layer, or None if it is of none alone.

    Arguments:
        program: the step.
        forward: the equations of its forward pass (`trace.forward_pass`).
        ends: the last equations of layers; what follows them is the last layer.
        again: the equations that run again, by index; none behind the last of `ends`.
        kept: the values that are kept for them.
    """
    eqns = program.eqns
    found: dict[int, int | None] = {}
    read_in: defaultdict[Any, set[int | None]] = defaultdict(set)
    constants: set[Any] = set()
    for index in forward:
        if constants.issuperset(reads(eqns[index])):
            constants.update(writes(eqns[index]))
    for index in reversed(forward):
        layer: int | None = bisect.bisect_left(ends, index)
        made = writes(eqns[index])
        if index in again:
            readers = {layer for v in made if v not in kept for layer in read_in[v]}
            if len(readers) == 1:
                [layer] = readers
            elif readers or constants.issuperset(reads(eqns[index])):
                layer = None
            found[index] = layer
        for v in reads(eqns[index]):
            read_in[v].add(layer)
    return found
