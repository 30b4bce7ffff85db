"""Taken apart: operations of a plan whose results XLA does not have all at once.

A `shard_map` that `trace.shards` leaves whole is one operation of a plan, which makes all
of its results together: with its gradient what every equation in it keeps. XLA compiles
its body as part of the step, makes each result when it can, and leaves out what it can
fuse. So a plan counts more bytes than XLA needs, and a bound on the bytes of all plans may
not count these results.
"""

from __future__ import annotations

import dataclasses

from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.program import Program, writes

_TAKEN_APART = frozenset(("shard_map",))


def without_taken_apart(program: Program, stored: StoredValues) -> StoredValues:
    """The same with results of such operations that take no bytes; the same object if there
    are none."""
    results = {
        v for eqn in program.eqns if eqn.primitive.name in _TAKEN_APART for v in writes(eqn)
    }
    if not results:
        return stored
    kept = stored.stored_bytes | dict.fromkeys(results, 0)
    return dataclasses.replace(stored, stored_bytes=kept)
