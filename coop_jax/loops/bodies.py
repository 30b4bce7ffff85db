"""Bodies: the programs inside of a `scan`, a `while_loop` or a `cond`.

A body is a straight line like the step itself. Of a `while_loop` it is what an iteration
computes, not the test of its end; a `cond` and a `switch` have one for each branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coop_jax.base import _compat
from coop_jax.trace.in_shard_maps import closed_jaxpr
from coop_jax.trace.inline import flatten
from coop_jax.trace.program import Program
from coop_jax.trace.shards import with_bodies_of_maps


def has_bodies(eqn: Any) -> bool:
    """Whether the equation has bodies that may be planned.

    A `scan` of one iteration has none: XLA takes it apart. Neither has what reads or makes
    a value that is no array (a reference, a token).
    """
    name = eqn.primitive.name
    if name not in _PARAMETERS or (name == "scan" and eqn.params["length"] < 2):
        return False
    return all(_compat.is_array(v.aval) for v in (*eqn.invars, *eqn.outvars))


def bodies_of(eqn: Any) -> list[Program]:
    """The bodies of an equation, each as a flat program; empty if it has none to plan."""
    if not has_bodies(eqn):
        return []
    value = eqn.params[_PARAMETERS[eqn.primitive.name]]
    bodies = []
    for closed in value if isinstance(value, tuple) else (value,):
        num_inputs = len(_compat.open_jaxpr(closed)[0].invars)
        bodies.append(with_bodies_of_maps(flatten(closed, [False] * num_inputs)))
    return bodies


def with_bodies(eqn: Any, bodies: Sequence[Program]) -> Any:
    """The equation with other programs for its bodies, of the same types."""
    name = _PARAMETERS[eqn.primitive.name]
    jaxprs = tuple(map(closed_jaxpr, bodies))
    value = jaxprs if isinstance(eqn.params[name], tuple) else jaxprs[0]
    return eqn.replace(params=eqn.params | {name: value})


def with_changed_bodies(eqn: Any, change: Callable[[Program], Program]) -> Any:
    """The equation with every body changed by a function; itself if that changes none."""
    bodies = bodies_of(eqn)
    changed = [change(body) for body in bodies]
    if all(new is old for new, old in zip(changed, bodies, strict=True)):
        return eqn
    return with_bodies(eqn, changed)


def runs_of_bodies(eqn: Any) -> int:
    """How often each body runs with the equation: of a `while_loop`, where that is not
    known, one iteration counts, as in all prices."""
    return eqn.params["length"] if eqn.primitive.name == "scan" else 1


# The parameter of each primitive that has its bodies: one jaxpr, or a tuple of them.
_PARAMETERS = {"scan": "jaxpr", "while": "body_jaxpr", "cond": "branches"}
