"""Operands whose types have a sharding: what functions of them are traced with.

With the other `_compat` modules the only one that touches `jax._src`: the public interface
has no way to trace a function where some axes of the mesh are manual already. Tested with
JAX 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import config as _config
from jax._src import core as _core

from coop_jax.base import _compat


def struct_of(aval: Any) -> jax.ShapeDtypeStruct:
    """What `jax.make_jaxpr` takes for an operand of a type."""
    typed = {}
    if _compat.has_explicit_sharding(aval):
        typed = {"sharding": aval.sharding, "manual_axis_type": aval.manual_axis_type}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, **typed)


@contextlib.contextmanager
def on_mesh_of(avals: Sequence[Any]) -> Iterator[None]:
    """Where functions of such types are traced: on the mesh that their shardings name, if
    these are part of them, with its manual axes as axes of collectives."""
    typed = [aval for aval in avals if _compat.has_explicit_sharding(aval)]
    if not typed:
        yield
        return
    mesh = typed[0].sharding.mesh
    manual = [(name, mesh.shape[name]) for name in mesh.manual_axes]
    # Without `check_vma` no type says over which axes its values differ.
    is_checked = any(aval.manual_axis_type.varying for aval in typed)
    with (
        jax.sharding.use_abstract_mesh(mesh),
        _core.extend_axis_env_nd(manual),
        _config._check_vma(is_checked),
    ):
        yield


def zeros_of(aval: Any) -> jax.Array:
    """Zeros of a type, of whole arrays that XLA divides or of shards: where it says over
    which axes shards differ, so do these."""
    zeros = jnp.zeros(aval.shape, aval.dtype)
    varying = aval.manual_axis_type.varying if _compat.has_explicit_sharding(aval) else ()
    return jax.lax.pcast(zeros, tuple(varying), to="varying") if varying else zeros
