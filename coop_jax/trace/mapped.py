"""Mapped steps: a step that is one `shard_map`, as the program of one device.

The body of a `shard_map` says what one device does, on its shards. Where it is the whole
step (`jax.shard_map(step, ...)`, and `jax.pmap`, which is one) its equations are the flat
program: sizes are those of a device, and collectives are operations. The planned program
is put under the same `shard_map` again.

Of a `shard_map` with equations around it, or that leaves axes of the mesh to XLA, the
equations are shards' among those of whole arrays (`trace.shards`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from coop_jax.base._compat import Literal
from coop_jax.trace.inline import Barrier, flatten
from coop_jax.trace.program import Program


@dataclasses.dataclass(frozen=True)
class Mapped:
    """The `shard_map` around a program.

    Attributes:
        mesh: its mesh.
        in_specs, out_specs: how the program's inputs and outputs are divided.
        check_vma: whether JAX checks which values differ between devices.
    """

    mesh: Any
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    check_vma: bool

    def around(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """A function of shards as one of whole arrays."""
        return jax.shard_map(
            run,
            mesh=self.mesh,
            in_specs=self.in_specs,
            out_specs=list(self.out_specs),
            check_vma=self.check_vma,
        )


def with_body_of_map(program: Program, *, barrier: Barrier | None = None) -> Program:
    """The program of one device if the program is one `shard_map`, else itself.

    Arguments:
        program: flat.
        barrier: as for `flatten`.
    """
    if len(program.eqns) != 1 or program.eqns[0].primitive.name != "shard_map":
        return program
    [eqn] = program.eqns
    return _body(program, eqn, barrier) if _is_whole(program, eqn) else program


def _is_whole(program: Program, eqn: Any) -> bool:
    """Whether a `shard_map` takes each input once and makes all outputs, on every axis of
    the mesh; a constant it takes has to be the same on all devices."""
    known = {*program.constvars, *program.invars}
    if any(isinstance(v, Literal) for v in (*eqn.invars, *program.outvars)):
        return False
    if len(eqn.invars) != len(known) or set(eqn.invars) != known:
        return False
    specs = dict(zip(eqn.invars, eqn.params["in_specs"], strict=True))
    is_on_all_axes = eqn.params["newly_manual_axes"] == {*eqn.params["mesh"].axis_names}
    return (
        is_on_all_axes
        and all(v in eqn.outvars for v in program.outvars)
        and not any(axis for v in program.constvars for axis in specs[v])
    )


def _body(program: Program, eqn: Any, barrier: Barrier | None) -> Program:
    params = eqn.params
    body = flatten(params["jaxpr"], [False] * len(eqn.invars), barrier=barrier)
    shard_of = dict(zip(eqn.invars, body.invars, strict=True))
    spec_of = dict(zip(eqn.invars, params["in_specs"], strict=True))
    places = [eqn.outvars.index(v) for v in program.outvars]
    return dataclasses.replace(
        body,
        constvars=(*body.constvars, *(shard_of[v] for v in program.constvars)),
        consts=(*body.consts, *program.consts),
        invars=tuple(shard_of[v] for v in program.invars),
        outvars=tuple(body.outvars[place] for place in places),
        donated=program.donated,
        debug_info=program.debug_info,
        mapped=Mapped(
            params["mesh"],
            tuple(spec_of[v] for v in program.invars),
            tuple(params["out_specs"][place] for place in places),
            params["check_vma"],
        ),
    )
