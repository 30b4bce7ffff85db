"""Shard types: the types of values of which every device of a mesh has its own.

Inside of a `shard_map` a type names the mesh, with the axes that arrays are divided over as
manual ones.
"""

from __future__ import annotations

import math
from typing import Any


def mesh_of_shards(aval: Any) -> Any | None:
    """The mesh of a shard's type; None if it is the type of a whole array."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    return mesh if mesh is not None and mesh.manual_axes else None


def num_shards_of(aval: Any) -> int:
    """The number of devices that each hold a shard of this type; 1 for a whole array."""
    mesh = mesh_of_shards(aval)
    if mesh is None:
        return 1
    return math.prod(mesh.shape[name] for name in mesh.manual_axes)


def mesh_of_operands(eqn: Any) -> Any | None:
    """The mesh of the shards that an equation reads or makes; None if there are none."""
    meshes = (mesh_of_shards(v.aval) for v in (*eqn.outvars, *eqn.invars))
    return next((mesh for mesh in meshes if mesh is not None), None)


def num_devices_of(eqn: Any) -> int:
    """The number of devices that each run an equation on shards of their own; 1 for one of
    whole arrays."""
    return max((num_shards_of(v.aval) for v in (*eqn.outvars, *eqn.invars)), default=1)
