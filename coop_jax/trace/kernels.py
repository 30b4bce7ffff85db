"""Kernels: the work of Pallas kernels, whose executables do not say what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coop_jax.base import _compat
from coop_jax.trace.costs import flops
from coop_jax.trace.program import Program
from coop_jax.trace.shard_types import num_devices_of


def kernel_flops(program: Program) -> dict[str, int]:
    """Floating point operations of one run of every kernel of a program, by its name.

    Inside of a `shard_map` a run is that of one device. Of several kernels with one name it
    is the run with most operations.
    """
    found: dict[str, int] = {}
    for eqn in _kernels(program.eqns):
        name = _compat.kernel_name(eqn)
        of_one = flops(eqn) // num_devices_of(eqn)
        found[name] = max(found.get(name, 0), of_one)
    return found


def _kernels(eqns: Any) -> Iterator[Any]:
    for eqn in eqns:
        if eqn.primitive.name == "pallas_call":
            yield eqn
            continue
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if _compat.is_jaxpr(inner):
                    yield from _kernels(_compat.open_jaxpr(inner)[0].eqns)
