"""Backends: the differences between XLA:CPU, XLA:GPU and XLA:TPU, in a folder each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from coop_jax.backends.backend import Backend
from coop_jax.backends.cpu.backend import CpuBackend
from coop_jax.backends.gpu.backend import GpuBackend
from coop_jax.backends.tpu.backend import TpuBackend
from coop_jax.base import _compat
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.program import Program

# By JAX's names of platforms.
_BACKENDS: dict[str, Backend] = {
    "cpu": CpuBackend(),
    "gpu": GpuBackend(),
    "cuda": GpuBackend(),
    "rocm": GpuBackend(has_arena=False),
    "tpu": TpuBackend(),
}


def named(platform: str) -> Backend:
    """The backend of a platform, by JAX's name; one without peculiarities if unknown."""
    return _BACKENDS.get(platform) or Backend()


def without(platform: str, *quirks: str) -> Backend:
    """The backend of a platform with quirks of these names switched off.

    Raises:
        ValueError: if it has no such quirk.
    """
    return named(platform).switched(without=quirks)


@contextlib.contextmanager
def registered(platform: str, backend: Backend) -> Iterator[None]:
    """Steps for a platform, by JAX's name, are compiled by this backend meanwhile.

    For scripts and tests that compare backends; steps that are planned keep their plans.
    """
    before = _BACKENDS.get(platform)
    _BACKENDS[platform] = backend
    try:
        yield
    finally:
        if before is None:
            del _BACKENDS[platform]
        else:
            _BACKENDS[platform] = before


def backend_of(device: Any) -> Backend:
    """The backend of a device of JAX's."""
    return named(device.platform)


def stored_values(program: Program, compiled: Any) -> StoredValues:
    """The values that XLA stores of a program whose tagged form was compiled, by the
    backend of the devices that it was compiled for."""
    devices = [d for s in _compat.input_shardings(compiled) for d in s.device_set]
    device = devices[0] if devices else _compat.default_device()
    return backend_of(device).stored_values(program, compiled)
