"""Absent devices: XLA compiles for them without their hardware or driver.

XLA needs a description of a device, not the device. For a GPU the description is a file
in `target_configs/` and the compiler comes with JAX's CUDA plugin; for a TPU both come
with libtpu, which knows its topologies by name. Neither needs an accelerator, a driver
or a process of its own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from coop_jax.targets import Target, named

_CUDA_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
# The smallest topologies with one chip; "megacore": its two cores are one device.
_TPU_TOPOLOGIES = {
    "tpu v4": {"topology_name": "v4:1x1x1", "chip_config_name": "megacore"},
    "tpu v5e": {"topology_name": "v5e:1x1"},
    "tpu v5p": {"topology_name": "v5p:1x1x1"},
    "tpu v6e": {"topology_name": "v6e:1x1"},
}
_CONFIGS = pathlib.Path(__file__).parent / "target_configs"
_lock = threading.RLock()


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
    if not isinstance(name, str):
        raise TypeError(
            f'`target=` must be a name such as "h200". Got {name!r} of type '
            f"{type(name).__name__}."
        )
    target = named(name)
    if target.platform == "cpu":
        return jax.devices("cpu")[0]
    with _lock:
        return _absent_device(target.name)


def placed(tree: Any, device: Any) -> Any:
    """A pytree of arrays as `jax.ShapeDtypeStruct`s that live on a device."""
    sharding = SingleDeviceSharding(device)

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        current = getattr(leaf, "sharding", None)
        if current is not None and len(current.device_set) > 1:
            raise ValueError(
                "`target=` plans for one device, so the arguments must not be sharded. "
                f"Got one over {len(current.device_set)} devices. Without `target=`, "
                "arguments on a mesh of `jax.experimental.topologies` devices are planned "
                "as they are."
            )
        aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        weak = bool(getattr(aval, "weak_type", False))
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=sharding, weak_type=weak
        )

    return jax.tree.map(place, tree)


@functools.cache
def _absent_device(name: str) -> Any:
    """The first device of a topology; cached, as two descriptions never compare equal."""
    target = named(name)
    _require_compiler(target)
    jax.devices()  # the user's own devices first, before any variable is changed
    try:
        return _gpu_device(target) if target.platform == "gpu" else _tpu_device(target)
    except Exception as error:
        raise RuntimeError(
            f"`target={name!r}`: JAX could not describe such a device in this process "
            f"({type(error).__name__}: {error}). Set the environment variable "
            "JAX_PLATFORMS=cpu before jax is imported, and check that the plugin's "
            "version is that of jax."
        ) from error


def _require_compiler(target: Target) -> None:
    is_gpu = target.platform == "gpu"
    modules = _CUDA_PLUGINS if is_gpu else ("libtpu",)
    if not any(map(_is_installed, modules)):
        extra, package = ("cuda", "jax[cuda13]") if is_gpu else ("tpu", "jax[tpu]")
        raise ImportError(
            f"`target={target.name!r}` needs XLA's compiler for it, which comes with "
            f'`{package}`, and that is not installed. Run `pip install "coop-jax[{extra}]"`'
            f' or `pip install "{package}"`; the device itself is not needed.'
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _gpu_device(target: Target) -> Any:
    """A GPU of a compile-only topology, from its description."""
    config = (_CONFIGS / f"{target.name}.txtpb").read_text()

    def describe() -> Any:
        return topologies.get_topology_desc(
            platform="cuda", topology="1x1x1", target_config=config
        )

    try:
        return describe().devices[0]
    except NotImplementedError:
        # Unless JAX_PLATFORMS leaves CUDA out, the plugin looks for a driver before it
        # registers, and without one it does not. Compiling needs none: register it now.
        # JAX's devices are chosen by then and stay what they are.
        with _environment("JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
            importlib.import_module(next(filter(_is_installed, _CUDA_PLUGINS))).initialize()
        return describe().devices[0]


def _tpu_device(target: Target) -> Any:
    """A TPU of a compile-only topology."""
    # Away from Google's cloud, libtpu would look for its metadata server; and without the
    # second variable only one process of a machine may load it, as if it held the chip.
    with _environment("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        topology = topologies.get_topology_desc(
            platform="tpu",
            chips_per_host_bounds=(1, 1, 1),  # libtpu of JAX 0.10: four by default
            **_TPU_TOPOLOGIES[target.name],
        )
    return topology.devices[0]


@contextlib.contextmanager
def _environment(*names: str) -> Iterator[None]:
    """Set variables to "1" for a while; those that are set already stay as they are."""
    missing = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(missing, "1"))
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]
