"""Take-overs: results that are written over an operand, or over a donated input.

A result may take over the memory of an operand that nothing reads later, as what a loop
carries does; a result of the step takes over that of a donated input.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.trace.costs import aval_bytes, is_elementwise, is_view
from coop_jax.trace.program import reads, writes

# Smaller donated inputs do not count as overwritten, see `donated_overwrites`.
SMALL_OVERWRITE_BYTES = 64 * 1024


def in_place_pairs(k, op, body, tensors, in_pool) -> list[tuple[int, int, int]]:
    """(operation, operand, result) where it may write over an operand of the same type.

    All equations between the two are elementwise, so that every element is read before
    it is written; other operands may be broadcast or gathered.
    """
    pairs = []
    for i in op.inputs:
        same = [
            o
            for o in op.outputs
            if in_pool[i] > 0
            and in_pool[i] == in_pool[o]
            and tensors[i].aval.dtype == tensors[o].aval.dtype
        ]
        if same and _is_read_by_element(body, tensors[i]):
            pairs += [(k, i, o) for o in same]
    return pairs


def scattered_pairs(k, op, body, sums, tensors, in_pool) -> list[tuple[int, int, int]]:
    """(operation, operand, result) where it scatters into one of its operands."""
    made = {v for eqn in body for v in writes(eqn)}
    return [
        (k, i, o)
        for o in op.outputs
        if tensors[o] in sums and sums[tensors[o]][0] in made
        for i in op.inputs
        if tensors[i] is sums[tensors[o]][1] and 0 < in_pool[i] == in_pool[o]
    ]


def carried_pairs(k, op, body, tensors, in_pool) -> list[tuple[int, int, int]]:
    """(operation, operand, result) where a loop begins with the one and ends with the
    other.

    XLA has one buffer for what a loop carries, from before it to behind it, and copies what
    is read otherwise as well.
    """
    index_of = {tensors[t]: t for t in (*op.inputs, *op.outputs)}
    read = [v for eqn in body for v in eqn.invars if not isinstance(v, Literal)]
    pairs = []
    for eqn in body:
        for before, after in _carried(eqn):
            if isinstance(before, Literal) or read.count(before) > 1:
                continue
            i, o = index_of.get(before), index_of.get(after)
            if i in op.inputs and o in op.outputs and 0 < in_pool[i] == in_pool[o]:
                pairs.append((k, i, o))
    return pairs


def _carried(eqn: Any) -> Iterator[tuple[Any, Any]]:
    """What a loop begins with, each with what it ends with."""
    if eqn.primitive.name == "while":
        first = eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
        yield from zip(eqn.invars[first:], eqn.outvars, strict=True)
    elif eqn.primitive.name == "scan":
        first, num_carried = _compat.scan_sizes(eqn)
        carried = eqn.invars[first : first + num_carried]
        yield from zip(carried, eqn.outvars[:num_carried], strict=True)


def _is_read_by_element(body, operand) -> bool:
    """Whether the equations that depend on an operand work element by element."""
    size = math.prod(operand.aval.shape)
    depends = {operand}
    for eqn in body:
        if depends.isdisjoint(reads(eqn)):
            continue
        made = writes(eqn)
        if not (is_elementwise(eqn) or is_view(eqn)):
            return False
        if any(math.prod(v.aval.shape) != size for v in made):
            return False
        depends.update(made)
    return True


def donated_overwrites(program, operations, tensors, external) -> np.ndarray:
    """Donated inputs and the outputs that take over their memory: (op, old, new).

    Paired as `jax.jit` pairs them: by type, in order. A pair whose old value is still
    read after the new one is made is left out; there XLA keeps both. So are small ones
    outside of the pool: values computed from an overwritten one can't be recomputed
    afterwards, and a counter that seeds every dropout mask must not pin the entire network
    to save its copy. In the pool a new value elsewhere would cost more than its bytes: it
    stays there, and splits the free memory around it.
    """
    index_of = {v: i for i, v in enumerate(tensors)}
    made_by = {t: k for k, op in enumerate(operations) for t in op.outputs}
    last_read: dict[int, int] = {}
    for k, op in enumerate(operations):
        last_read.update(dict.fromkeys(op.inputs, k))
    waiting: dict[Any, list[int]] = defaultdict(list)
    for var, donated in zip(program.invars, program.donated, strict=True):
        if donated:
            waiting[_type(var)].append(index_of[var])
    pairs = []
    taken: set[int] = set()
    for var in program.outvars:
        queue = waiting.get(_type(var))
        if not queue:
            continue
        old = queue.pop(0)
        new = None if isinstance(var, Literal) else index_of[var]
        if new is None or new not in made_by or new in taken:
            continue
        if external[old] and aval_bytes(var.aval) < SMALL_OVERWRITE_BYTES:
            continue
        if last_read.get(old, -1) <= made_by[new]:
            taken.add(new)
            pairs.append((made_by[new], old, new))
    return np.array(sorted(pairs), np.int64).reshape(-1, 3)


def overwritten_by_operation(overwrites: np.ndarray) -> dict[int, tuple[int, ...]]:
    """The donated inputs whose memory an operation's results take over, by operation."""
    found: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for op, old, _ in overwrites.tolist():
        found[op] += (old,)
    return dict(found)


def _type(var: Any) -> tuple[Any, Any]:
    return var.aval.shape, var.aval.dtype
