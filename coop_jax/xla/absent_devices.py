"""Absent devices: the device of a target's name, and arguments that live on it.

XLA compiles for devices without their hardware or driver (`base.absent_topologies`).
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from coop_jax.base.absent_topologies import Recipe, devices_of
from coop_jax.targets import Target, named, target_of


def named_device(name: str) -> Any:
    """The JAX device of a target's name.

    Arguments:
        name: `"cpu"`, or a row of the table in `coop_jax.targets`.

    Returns:
        This machine's CPU device; for all other names an absent device.

    Raises:
        ValueError: if the name is not in the table.
        ImportError: if the plugin that brings XLA's compiler is not installed.
        RuntimeError: if it is, and cannot be used in this process.
    """
    return _device_of(_checked(name))


def lie_on_mesh(name: str, trees: Any) -> bool:
    """Whether arguments of a step lie on a mesh of the devices that a target's name means.

    Arguments:
        name: as of `named_device`.
        trees: a pytree of the arguments.

    Raises:
        ValueError: if the name is not in the table, or they lie on other devices.
    """
    target = _checked(name)
    shardings = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(trees)]
    over = [s.device_set for s in shardings if s is not None and len(s.device_set) > 1]
    others = [d for devices in over for d in devices if target_of(d) != target]
    if others:
        raise ValueError(
            "`target=` must be the device of the mesh that sharded arguments lie on. Got "
            f"{target.name!r} and arguments over {max(map(len, over))} devices of "
            f"{target_of(others[0]).name!r}. Leave `target=` out: the mesh says which "
            "devices they are for, and `coop_jax.targets.mesh` makes one of devices that "
            "are not there."
        )
    return bool(over)


def placed(tree: Any, device: Any) -> Any:
    """A pytree of arrays as `jax.ShapeDtypeStruct`s that live on a device."""
    sharding = SingleDeviceSharding(device)

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=weak
        )

    return jax.tree.map(place, tree)


def _checked(name: str) -> Target:
    if not isinstance(name, str):
        raise TypeError(
            f'`target=` must be a name such as "h200". Got {name!r} of type '
            f"{type(name).__name__}."
        )
    return named(name)


def _device_of(target: Target) -> Any:
    if target.platform == "cpu":
        return jax.devices("cpu")[0]
    return devices_of(Recipe(target.name, target.platform))[0]
