"""bfloat16 storage: float32 values that XLA:TPU keeps in half precision.

A TPU multiplies matrices in bfloat16 by default. So what only products read,
XLA:TPU rounds where it is made and keeps in half the bytes. It does not see through a
fence: a value that passes one is kept whole. So what is kept rounded in the step as written
passes fences rounded, and the numbers are those of the step as written.

An equation that is fused with the one that makes a value reads it before it is rounded: a
batch normalization's mean, next to the convolution; a bias's gradient, next to that of an
activation. Where such a reader runs behind a fence, the value passes it whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import jax

from coop_jax.emit.narrowed import WHOLE
from coop_jax.graph.stored_values import Narrowed
from coop_jax.trace.costs import aval_bytes, may_vanish
from coop_jax.trace.program import CALLER, Program, consumers_of, writes

_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))


def is_rounded(value: Any, value_sizes: Sequence[int]) -> bool:
    """Does a buffer hold a value in half precision?

    Arguments:
        value_sizes: of the buffer (`buffers_from_schedule.StoredBuffer`).
    """
    return (
        getattr(value.aval, "dtype", None) == WHOLE
        and len(value_sizes) > 1
        and aval_bytes(value.aval) == value_sizes[1]
    )


def read_rounded(
    program: Program,
    values: Iterable[Any],
    consumers: Mapping[Any, Sequence[int]],
    fusions: Iterable[Collection[int]],
) -> Narrowed:
    """Which of the values may be kept rounded, and who reads them unrounded.

    Arguments:
        values: that are stored rounded.
        consumers: from `program.consumers_of`.
        fusions: equations that each of XLA's fusions runs.
    """

    def rounds(reader: int, fusion: Collection[int]) -> bool:
        if reader == CALLER:
            return False
        eqn = program.eqns[reader]
        if not may_vanish(eqn):
            return reader not in fusion or _rounds(eqn)
        return all(rounds(i, fusion) for v in writes(eqn) for i in consumers[v])

    def read_whole(value: Any, fusion: Collection[int]) -> set[int]:
        return {i for i in consumers[value] if not rounds(i, fusion)}

    whole = {v: read_whole(v, ()) for v in values if CALLER not in consumers[v]}
    made_by = {v: i for i, eqn in enumerate(program.eqns) for v in writes(eqn)}
    made = {made_by[v]: v for v in whole if v in made_by}
    for fusion in fusions:
        for index in made.keys() & set(fusion):
            whole[made[index]] |= read_whole(made[index], fusion)
    return {value: frozenset(readers) for value, readers in whole.items()}


def read_unrounded(program: Program, narrowed: Narrowed) -> list[Any]:
    """The narrowed values for which the program alone does not show that nobody needs them
    whole: others than products read them, or their elements in another place, and are not
    among those that read them as float32."""
    consumers = consumers_of(program)

    def is_rounded_by(reader: int) -> bool:
        if reader == CALLER:
            return False
        eqn = program.eqns[reader]
        if not may_vanish(eqn) and eqn.primitive.name != "transpose":
            return _rounds(eqn)
        return all(is_rounded_by(i) for v in writes(eqn) for i in consumers[v])

    return [
        value
        for value, whole in narrowed.items()
        if not all(i in whole or is_rounded_by(i) for i in consumers[value])
    ]


def _rounds(eqn: Any) -> bool:
    """Is it a product that a TPU makes of rounded operands?"""
    asked = eqn.params.get("precision")
    each = asked if isinstance(asked, tuple) else (asked,)
    is_default = all(one in (None, jax.lax.Precision.DEFAULT) for one in each)
    return eqn.primitive.name in _PRODUCTS and is_default
