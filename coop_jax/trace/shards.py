"""Shards: what a `shard_map` calls, as equations of the program around it.

The body of a `shard_map` says what one device does, on its shards. Its equations become
equations of the flat program, whose variables are shards: their types say so, by the axes
of the mesh that are manual. Two primitives stand between shards and whole arrays,
`coop_to_shards` and `coop_to_whole`. What leaves one `shard_map` and enters another in the
same way, as residuals do on their way to the gradient, stays a shard in between.

`trace.in_shard_maps` puts the equations of a planned program under `shard_map`s again. A
step that is one `shard_map` is the program of one device instead (`trace.mapped`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from coop_jax.base import _compat
from coop_jax.base._compat import DropVar, Literal, Primitive
from coop_jax.trace.cse import merge_equal, without_dead
from coop_jax.trace.inline import flatten
from coop_jax.trace.program import Program
from coop_jax.trace.purity import may_run_again
from coop_jax.trace.shard_types import mesh_of_operands

to_shards_p = Primitive("coop_to_shards")
to_whole_p = Primitive("coop_to_whole")
BOUNDARIES = (to_shards_p, to_whole_p)


@dataclasses.dataclass(frozen=True)
class ShardMap:
    """The `shard_map` that equations of shards are of.

    Attributes:
        mesh: its mesh.
        manual_axes: the axes that it divides arrays over; others it leaves to XLA.
        check_vma: whether JAX checks which values differ between devices.
    """

    mesh: Any
    manual_axes: frozenset[str]
    check_vma: bool

    @property
    def abstract_mesh(self) -> Any:
        """The mesh in the types of its shards."""
        types = {
            name: jax.sharding.AxisType.Manual if name in self.manual_axes else kind
            for name, kind in zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        }
        mesh = self.mesh
        abstract = getattr(mesh, "abstract_mesh", mesh)
        return abstract.update_axis_types(types)

    def varying_axes(self, aval: Any) -> tuple[str, ...]:
        """The axes of the mesh over which a shard may differ, in the mesh's order."""
        differs = self.manual_axes
        if self.check_vma:
            differs = aval.manual_axis_type.varying
        return tuple(name for name in self.mesh.axis_names if name in differs)


def with_bodies_of_maps(program: Program) -> Program:
    """The program with the equations of its `shard_map`s; itself if it has none whose body
    can be taken out.

    Arguments:
        program: flat.
    """
    taken = _Taken()
    eqns: list[Any] = []
    for eqn in program.eqns:
        found = taken.map_of(eqn)
        eqns += [eqn] if found is None else taken.body(eqn, found)
    if not taken.maps:
        return program
    eqns = [eqn.replace(invars=[taken.read(v) for v in eqn.invars]) for eqn in eqns]
    eqns, outvars = merge_equal(eqns, [taken.read(v) for v in program.outvars])
    eqns = without_dead(eqns, outvars)
    return dataclasses.replace(
        program,
        eqns=tuple(eqns),
        outvars=tuple(outvars),
        constvars=(*program.constvars, *(v for v, _ in taken.constants)),
        consts=(*program.consts, *(value for _, value in taken.constants)),
    )


class _Taken:
    """The `shard_map`s that were taken out of a program so far.

    Attributes:
        maps: by the mesh of their types.
        constants: arrays that their bodies hold, with their variables in the program.
    """

    def __init__(self) -> None:
        self.maps: dict[Any, ShardMap] = {}
        self.constants: list[tuple[Any, Any]] = []
        self._same: dict[Any, Any] = {}
        # By whole array: how it is put together, and of which shard.
        self._made_of: dict[Any, tuple[Any, Any]] = {}

    def read(self, atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else self._same.get(atom, atom)

    def map_of(self, eqn: Any) -> ShardMap | None:
        """The map of an equation; None if it is none, or stays one operation, as what may
        not run again."""
        if eqn.primitive.name != "shard_map" or eqn.effects or not may_run_again(eqn):
            return None
        params = eqn.params
        found = ShardMap(
            params["mesh"], frozenset(params["newly_manual_axes"]), params["check_vma"]
        )
        if not found.manual_axes or mesh_of_operands(eqn) is not None:
            return None
        # Types name the mesh alone: no two maps may differ in anything else.
        if self.maps.setdefault(found.abstract_mesh, found) != found:
            return None
        return found

    def body(self, eqn: Any, found: ShardMap) -> list[Any]:
        """The equations of a map, between those that divide its operands and those that
        put its results together."""
        params = eqn.params
        body = flatten(params["jaxpr"], [False] * len(eqn.invars))
        eqns: list[Any] = []
        for var, const in zip(body.constvars, body.consts, strict=True):
            whole = _compat.new_var(jax.typeof(const))
            self.constants.append((whole, const))
            eqns.append(_boundary(to_shards_p, whole, var, found, jax.P(), eqn))
        operands = zip(eqn.invars, body.invars, params["in_specs"], strict=True)
        for atom, var, spec in operands:
            self._enter(self.read(atom), var, spec, found, eqns, eqn)
        eqns += body.eqns
        results = zip(eqn.outvars, body.outvars, params["out_specs"], strict=True)
        for var, shard, spec in results:
            if not isinstance(var, DropVar):
                self._leave(shard, var, spec, found, eqns, eqn)
        return eqns

    def _enter(self, atom, var, spec, found, eqns, like) -> None:
        """Make `var` the shard of an operand."""
        kept = self._made_of.get(atom) if not isinstance(atom, Literal) else None
        if kept is not None and kept[0] == (found, spec) and kept[1].aval == var.aval:
            self._same[var] = self.read(kept[1])
            return
        eqns.append(_boundary(to_shards_p, atom, var, found, spec, like))

    def _leave(self, atom, var, spec, found, eqns, like) -> None:
        """Make `var` the whole array of a result."""
        eqns.append(_boundary(to_whole_p, atom, var, found, spec, like))
        if not isinstance(atom, Literal):
            # Else the devices' shards may differ where the array has one for all.
            if set(found.varying_axes(atom.aval)) <= _axes_of(spec):
                self._made_of[var] = ((found, spec), atom)


def _boundary(primitive, before, after, found: ShardMap, spec: Any, like: Any) -> Any:
    params = {"map": found, "spec": spec}
    eqn = _compat.new_jaxpr_eqn([before], [after], primitive, params, frozenset())
    return eqn.replace(source_info=like.source_info)


def _axes_of(spec: Any) -> set[str]:
    """The axes of a mesh that a spec names."""
    named: set[str] = set()
    for axis in spec:
        named |= set(axis) if isinstance(axis, tuple) else {axis}
    return named - {None}
