"""Targets: how fast a device computes and moves bytes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils

from coop_jax.base import _compat
from coop_jax.base.absent_topologies import GPUS_OF_A_HOST, Recipe, devices_of

# Matrix units are so much faster than float32 arithmetic outside of them. Data sheets,
# two operations of a fused multiply-add counted as one: A100 156e12 to 9.7e12, H100 and
# H200 494e12 to 33e12; a core of a processor: products keep both its multiply-add units
# busy, a polynomial for `exp` or `tanh` waits for itself.
_MATRIX_TO_VECTOR = 16
# A kernel's launch on a GPU within a stream, a call by XLA:CPU's runtime; the instructions
# of a TPU's program follow each other.
_LAUNCH_SECONDS = {"cpu": 1e-6, "gpu": 2e-6, "tpu": 0.0}
# Main memory is so many times as fast as the links to other devices. Data sheets, links in
# one direction: A100 2.0e12 to 3.0e11, H100 3.35e12 to 4.5e11, H200 4.8e12 to 4.5e11, B200
# 8e12 to 9e11; TPU v4 1.2e12 to 3.0e11, v5e 8.2e11 to 2.0e11, v5p 2.8e12 to 6.0e11, v6e
# 1.6e12 to 4.5e11. Host devices share the memory.
_MEMORY_TO_LINKS = {"cpu": 1, "gpu": 8, "tpu": 4}


@dataclasses.dataclass(frozen=True)
class Target:
    """Rates of a device, for the roofline that ranks plans.

    Attributes:
        name: its name in the table, which `target=` takes.
        platform: JAX's platform name (`"cpu"`, `"gpu"`, `"tpu"`).
        flops_per_second: dense matrix rate by element width in bits, 32 and 16.
        bytes_per_second: main memory bandwidth.
        alignment_bytes: alignment of XLA's buffers.
        memory_bytes: the device's main memory as XLA sees it, None if not known.
        device_kind: the part of JAX's `device_kind` that identifies it, in lower case.
        near_bytes: bytes of a TPU's VMEM that XLA moves values to by itself; 0 elsewhere.
        patch_seconds: what a convolution in groups of channels, or of three or more
            dimensions, takes for each element of the patches that its window meets; 0 where
            its products have the rate of matrices.
        window_tap_seconds: what a reduction of windows takes for each element of its result
            and each position of its window; 0 where it has the rate of vectors.
    """

    name: str
    platform: str
    flops_per_second: dict[int, float]
    bytes_per_second: float
    alignment_bytes: int
    memory_bytes: int | None = None
    device_kind: str | None = None
    near_bytes: int = 0
    patch_seconds: float = 0.0
    window_tap_seconds: float = 0.0

    @property
    def launch_seconds(self) -> float:
        """What an instruction takes beside its work."""
        return _LAUNCH_SECONDS[self.platform]

    @property
    def link_bytes_per_second(self) -> float:
        """Bandwidth of the links to other devices, in one direction."""
        return self.bytes_per_second / _MEMORY_TO_LINKS[self.platform]

    @property
    def vector_rate(self) -> float:
        """Operations per second of elementwise work and reductions."""
        return self.flops_per_second[32] / _MATRIX_TO_VECTOR

    def matrix_rate(self, itemsize: int) -> float:
        """FLOPs per second of matrix products.

        Arguments:
            itemsize: bytes of one element.
        """
        return self.flops_per_second[16 if itemsize <= 2 else 32]

    def product_seconds(self, flops: int, itemsize: int, patch_elements: int = 0) -> float:
        """Seconds of the arithmetic of a product or convolution.

        Arguments:
            flops: its floating point operations.
            itemsize: bytes of one element.
            patch_elements: of a convolution that `patch_seconds` is of the number of
                elements of its patches; 0 for all others.
        """
        of_matrices = flops / self.matrix_rate(itemsize)
        return max(of_matrices, patch_elements * self.patch_seconds)

    def window_seconds(self, taps: int) -> float:
        """Seconds of the arithmetic of a reduction of windows.

        Arguments:
            taps: the elements of its result times the positions of its window.
        """
        return max(taps / self.vector_rate, taps * self.window_tap_seconds)


# XLA:TPU: every buffer's offset in main memory is a multiple.
TPU_ALIGNMENT = 16 * 2**10
# XLA:CPU and XLA:GPU: every buffer's offset within an allocation is one.
HEAP_ALIGNMENT = 64


def heap_alignment_bytes(device: Any) -> int:
    """Bytes that XLA aligns the offsets of temporaries to.

    Arguments:
        device: a JAX device, present or absent.
    """
    return TPU_ALIGNMENT if device.platform == "tpu" else HEAP_ALIGNMENT


def _tpu(
    name: str, rate: float, bandwidth: float, memory_gib: float, kind: str, near_mib: int
) -> Target:
    """A row of the table; every TPU computes float32 and bfloat16 matrices at one rate."""
    return Target(
        f"tpu {name}",
        "tpu",
        {32: rate, 16: rate},
        bandwidth,
        TPU_ALIGNMENT,
        int(memory_gib * 2**30),
        kind,
        near_mib * 2**20,
    )


# One row for every processor, and not rates measured on this one: on a busy machine they
# depend more on the other processes (45 to 600 operations per byte were seen on one
# machine), and a step's plan would change from day to day. Only the ratio decides between
# plans, here 10 operations per byte. Data sheets give 15 to 30 to processors of any size:
# 32 float32 operations per core and cycle or twice that, over their bandwidth. XLA:CPU
# reaches less in products and convolutions of the sizes of layers: half of it
# (`examples/cpu_rates.py`). What pages touched first take has a price of its own
# (`backends.cpu.fresh_pages`). Half-precision matrices are converted to float32: no faster.
# XLA:CPU's grouped convolutions, depthwise ones among them, reach 0.6 to 60 GFLOP/s with 1
# to 64 channels a group, those of three dimensions 10 to 110: 1 to 3 ns for each element of
# the patches. In poolings these take 0.3 to 0.4 ns (all by `examples/cpu_rates.py`).
_CPU = Target(
    *("cpu", "cpu", {32: 2e11, 16: 2e11}, 2e10, HEAP_ALIGNMENT),
    patch_seconds=2e-9,
    window_tap_seconds=5e-10,
)

# Vendors' data sheets: dense rates without sparsity (32: TF32 on NVIDIA, which is XLA's
# default matmul precision there; bf16 passes on TPU), memory bandwidth. Memory is the
# part that the driver or XLA:TPU leaves to a program, a little less than the data sheet's;
# VMEM the most that XLA:TPU uses at once for a network with many small values.
# Rows: name, platform, rates, bytes/s, alignment, memory, device kind, VMEM.
_ROWS = (
    _CPU,
    Target("a100", "gpu", {32: 156e12, 16: 312e12}, 2.0e12, 256, 85_100_068_864, "a100"),
    Target("h100", "gpu", {32: 494e12, 16: 989e12}, 3.35e12, 256, 84_942_979_072, "h100"),
    Target("h200", "gpu", {32: 494e12, 16: 989e12}, 4.8e12, 256, 151_397_597_184, "h200"),
    Target("b200", "gpu", {32: 1.1e15, 16: 2.2e15}, 7.7e12, 256, 191_514_411_008, "b200"),
    _tpu("v4", 275e12, 1.2e12, 30.75, "tpu v4", 128),
    _tpu("v5e", 197e12, 0.82e12, 15.75, "tpu v5 lite", 112),
    _tpu("v5p", 459e12, 2.77e12, 95.73, "tpu v5", 48),
    _tpu("v6e", 918e12, 1.64e12, 31.24, "tpu v6 lite", 96),
)
_TABLE = {target.name: target for target in _ROWS}


def names() -> list[str]:
    """The names that `target=` takes."""
    return list(_TABLE)


def named(name: str) -> Target:
    """The target of a name such as `"h200"` or `"tpu v5e"`: no device is needed.

    Arguments:
        name: one of `names()`, in any case, with `-` or `_` for spaces; `tpu` may be left
            out.

    Raises:
        ValueError: the name is not in the table.
    """
    words = name.lower().replace("-", " ").replace("_", " ").split()
    key = " ".join(words)
    target = _TABLE.get(key) or _TABLE.get(f"tpu {key}")
    if target is None:
        raise ValueError(
            f"`target=` must be one of {', '.join(map(repr, names()))}. Got {name!r}. "
            "For another device, put its sharding on the arguments, or make a "
            "`coop_jax.targets.Target`."
        )
    return target


def known_target(device: Any) -> Target | None:
    """The row of the table that describes a JAX device; None if it has none.

    Arguments:
        device: a JAX device, present or absent.
    """
    kind = device.device_kind.lower()
    rows = [t for t in _TABLE.values() if t.device_kind and t.device_kind in kind]
    # "tpu v5" (v5p) is also the beginning of "tpu v5 lite" (v5e).
    return max(rows, key=lambda t: len(t.device_kind or ""), default=None)


def target_of(device: Any) -> Target:
    """The target that describes a JAX device.

    An accelerator that the table does not know is given the rates of the nearest one
    of its platform: only the ratio of the two rates decides between plans.

    Arguments:
        device: a JAX device, present or absent.
    """
    if device.platform == "cpu":
        return _CPU
    nearest = "h100" if device.platform in ("gpu", "cuda", "rocm") else "tpu v5e"
    return known_target(device) or _TABLE[nearest]


def memory_bytes(device: Any) -> int | None:
    """Bytes of memory that a device offers; None if they are not known.

    Arguments:
        device: a JAX device. A present one reports them; those of an absent one are in the
            table. For one of another process a device of this one answers: the devices
            of a mesh are alike.
    """
    if _compat.is_absent(device):
        target = known_target(device)
        return target and target.memory_bytes
    if jax.process_count() > 1 and device.process_index != device.client.process_index():
        device = device.client.local_devices()[0]
    return (device.memory_stats() or {}).get("bytes_limit")


# "tpu v5e:4x4", "tpu v5e:4x4 x2", "h200 x8": a target, the chips of a slice, a number.
_MESH_NAME = re.compile(r"\s*([^:]+?)\s*(?::(\d+(?:x\d+){1,2}))?(?:\s+x(\d+))?\s*")


def mesh(name: str, axes: Mapping[str, int]) -> jax.sharding.Mesh:
    """A mesh of devices that need not be there.

    Arguments placed on it are compiled and planned for it, and nothing is run::

        mesh = coop_jax.targets.mesh("tpu v5e:4x4", {"fsdp": 16})
        batch = jax.ShapeDtypeStruct(
            (16, 4096), "int32", sharding=NamedSharding(mesh, PartitionSpec("fsdp"))
        )
        print(coop_jax.fit(train_step, state, batch, donate_argnums=0))

    Arguments:
        name: a name of `names()` and its devices. TPUs: the chips by axis,
            `"tpu v5e:4x4"`, and the number of slices if there are several,
            `"tpu v5e:4x4 x2"`. GPUs: their number, `"h200 x8"`, eight to a host.
            `"cpu x8"`: host devices, which have to be there.
        axes: the size of every axis by its name. Their product is the number of devices.

    Returns:
        The mesh; the same devices for equal names. With several slices the first axes
        reach over them.

    Raises:
        ValueError: if the name or the sizes are not of this form, or XLA knows no such
            arrangement of chips.
        ImportError, RuntimeError: as `coop_jax.fit` for absent devices.
    """
    sizes = tuple(axes.values())
    target, arrangement, count = _parsed(name)
    devices = _devices(name, target, arrangement, count)
    if not sizes or math.prod(sizes) != len(devices):
        product = " x ".join(map(str, sizes)) or "no axis"
        raise ValueError(
            "`mesh(axes=...)` must have sizes whose product is the number of devices. Got "
            f"{product} for the {len(devices)} of {name!r}. Change the sizes or the name."
        )
    if target.platform == "tpu" and count == 1:  # Neighbours in the mesh are linked.
        ordered = mesh_utils.create_device_mesh(
            sizes, devices, allow_split_physical_axes=True
        )
    else:
        ordered = np.array(devices).reshape(sizes)
    return jax.sharding.Mesh(ordered, tuple(axes))


def _parsed(name: str) -> tuple[Target, str, int]:
    """The target of a mesh's name, the chips of a slice, and the number after `x`, or 1."""
    match = _MESH_NAME.fullmatch(name) if isinstance(name, str) else None
    target = None if match is None else named(match[1])
    chips = match[2] if match else None
    is_tpu = target is not None and target.platform == "tpu"
    if match is None or target is None or is_tpu != bool(chips) or match[3] == "0":
        raise ValueError(
            '`mesh(name=...)` must be of the form "tpu v5e:4x4" (the chips by axis; for '
            'two slices "tpu v5e:4x4 x2"), "h200 x8" or "cpu x8". '
            f"Got {name!r}. Write the devices after the name of a target."
        )
    return target, chips or "", int(match[3] or 1)


def _devices(name: str, target: Target, arrangement: str, count: int) -> list[Any]:
    if target.platform == "cpu":
        present = jax.devices("cpu")
        if len(present) < count:
            raise ValueError(
                f"`mesh(name=...)`: devices of {target.name!r} have to be there. Got "
                f"{name!r} and {len(present)} of them. Set the environment variable "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before jax is "
                "imported."
            )
        return present[:count]
    if target.platform == "gpu":
        if count > GPUS_OF_A_HOST and count % GPUS_OF_A_HOST:
            raise ValueError(
                f"`mesh(name=...)`: more than {GPUS_OF_A_HOST} GPUs must be whole hosts "
                f"of {GPUS_OF_A_HOST}. Got {name!r}. Choose a multiple."
            )
        return devices_of(Recipe(target.name, "gpu", str(count)))
    try:
        return devices_of(Recipe(target.name, "tpu", arrangement, count))
    except jax.errors.JaxRuntimeError as error:
        example = f"{target.name}:{'x'.join('2' * (1 + arrangement.count('x')))}"
        raise ValueError(
            "`mesh(name=...)` must be an arrangement of chips that XLA:TPU knows. Got "
            f"{name!r}: {error}. Choose another one, such as "
            f"{example!r}."
        ) from error
