"""Absent topologies: devices that XLA compiles for without their hardware or driver.

XLA needs a description of its devices, not the devices. For GPUs the description is a file
in `coop_jax/xla/target_configs/` and the compiler comes with JAX's CUDA plugin; for TPUs
both come with libtpu, which knows its topologies by name. Neither needs an accelerator, a
driver or a process of its own.
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
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

CUDA_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
# Chips of one host, by axis of the topology.
_CHIPS_OF_A_HOST = (2, 2, 1)
GPUS_OF_A_HOST = 8
# The smallest topologies have one chip.
_ONE_CHIP = {"tpu v4": "1x1x1", "tpu v5e": "1x1", "tpu v5p": "1x1x1", "tpu v6e": "1x1"}
# "megacore": the two cores of a chip are one device.
_TPU_OPTIONS = {"tpu v4": {"chip_config_name": "megacore"}}
_CONFIGS = pathlib.Path(__file__).parent.parent / "xla" / "target_configs"
_lock = threading.RLock()
_recipes: dict[Any, Recipe] = {}


class Recipe(NamedTuple):
    """How devices were described, to describe the same ones in another process.

    Attributes:
        target: the name of a row in `coop_jax.targets`.
        platform: JAX's name of its platform.
        arrangement: a TPU's chips by axis, such as `"4x4"`; of GPUs their number; `""`: one
            chip.
        slices: of so many chips or GPUs.
    """

    target: str
    platform: str
    arrangement: str = ""
    slices: int = 1


def devices_of(recipe: Recipe) -> list[Any]:
    """The devices of a description; the same objects for equal recipes.

    Raises:
        ImportError: if the plugin that brings XLA's compiler is not installed.
        RuntimeError: if it is, and cannot be used in this process.
        jax.errors.JaxRuntimeError: XLA's, if it knows no such arrangement.
    """
    with _lock:
        return _described(recipe)


def recipe_of(device: Any) -> Recipe | None:
    """The recipe that `devices_of` made a device by; None if it did not make it."""
    return _recipes.get(device)


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


@functools.cache
def _described(recipe: Recipe) -> list[Any]:
    """Cached, as two descriptions never compare equal."""
    _require_compiler(recipe)
    jax.devices()  # the user's own devices first, before any variable is changed
    make = _gpus if recipe.platform == "gpu" else _tpus
    try:
        devices = list(make(recipe))
    except Exception as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and recipe.arrangement:
            raise
        raise RuntimeError(
            f"`target={recipe.target!r}`: JAX could not describe such a device in this "
            f"process ({type(error).__name__}: {error}). Set the environment variable "
            "JAX_PLATFORMS=cpu before jax is imported, and check that the plugin's "
            "version is that of jax."
        ) from error
    _recipes.update(dict.fromkeys(devices, recipe))
    return devices


def _require_compiler(recipe: Recipe) -> None:
    is_gpu = recipe.platform == "gpu"
    modules = CUDA_PLUGINS if is_gpu else ("libtpu",)
    if not any(map(is_installed, modules)):
        extra, package = ("cuda", "jax[cuda13]") if is_gpu else ("tpu", "jax[tpu]")
        raise ImportError(
            f"`target={recipe.target!r}` needs XLA's compiler for it, which comes with "
            f'`{package}`, and that is not installed. Run `pip install "coop-jax[{extra}]"`'
            f' or `pip install "{package}"`; the device itself is not needed.'
        )


def _gpus(recipe: Recipe) -> list[Any]:
    """GPUs of a compile-only topology, from a description of one."""
    config = (_CONFIGS / f"{recipe.target}.txtpb").read_text()
    count = int(recipe.arrangement or 1)
    of_a_host = min(count, GPUS_OF_A_HOST)
    arranged = f"{recipe.slices}x{count // of_a_host}x{of_a_host}"

    def describe() -> Any:
        return topologies.get_topology_desc(
            platform="cuda", topology=arranged, target_config=config
        )

    try:
        return describe().devices
    except NotImplementedError:
        # Unless JAX_PLATFORMS leaves CUDA out, the plugin looks for a driver before it
        # registers, and without one it does not. Compiling needs none: register it now.
        # JAX's devices are chosen by then and stay what they are.
        with _environment("JAX_SKIP_CUDA_CONSTRAINTS_CHECK"):
            importlib.import_module(next(filter(is_installed, CUDA_PLUGINS))).initialize()
        return describe().devices


def _tpus(recipe: Recipe) -> list[Any]:
    """TPUs of a compile-only topology."""
    chips = recipe.arrangement or _ONE_CHIP[recipe.target]
    generation = recipe.target.removeprefix("tpu ")
    axes = [int(length) for length in chips.split("x")]
    axes += [1] * (len(_CHIPS_OF_A_HOST) - len(axes))
    options: dict[str, Any] = dict(_TPU_OPTIONS.get(recipe.target, {}))
    if recipe.slices > 1:
        options["num_slices"] = recipe.slices
    # Away from Google's cloud, libtpu would look for its metadata server; and without the
    # second variable only one process of a machine may load it, as if it held the chip.
    with _environment("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        topology = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{generation}:{chips}",
            chips_per_host_bounds=tuple(map(min, axes, _CHIPS_OF_A_HOST)),
            **options,
        )
    return topology.devices


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
