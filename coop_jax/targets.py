"""Targets: how fast a device computes and moves bytes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import time
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Target:
    """Rates of a device, for the roofline that ranks plans.

    Attributes:
        name: what the table calls it.
        platform: JAX's platform name (`"cpu"`, `"gpu"`, `"tpu"`).
        flops_per_second: dense matrix rate by element width in bits, 32 and 16.
        bytes_per_second: main memory bandwidth.
        alignment_bytes: alignment of XLA's buffers.
    """

    name: str
    platform: str
    flops_per_second: dict[int, float]
    bytes_per_second: float
    alignment_bytes: int

    def matrix_rate(self, itemsize: int) -> float:
        return self.flops_per_second[16 if itemsize <= 2 else 32]


# Vendors' data sheets: dense rates without sparsity (32: TF32 on NVIDIA, which is XLA's
# default matmul precision there; bf16 passes on TPU), memory bandwidth.
_TABLE = {
    target.name: target
    for target in (
        Target("a100", "gpu", {32: 156e12, 16: 312e12}, 2.0e12, 256),
        Target("h100", "gpu", {32: 494e12, 16: 989e12}, 3.35e12, 256),
        Target("h200", "gpu", {32: 494e12, 16: 989e12}, 4.8e12, 256),
        Target("tpu v4", "tpu", {32: 275e12, 16: 275e12}, 1.2e12, 512),
        Target("tpu v5e", "tpu", {32: 197e12, 16: 197e12}, 0.82e12, 512),
        Target("tpu v5p", "tpu", {32: 459e12, 16: 459e12}, 2.77e12, 512),
    )
}


def named(name: str) -> Target:
    """The target of a name such as `"a100"`: no device is needed."""
    target = _TABLE.get(name.lower())
    if target is None:
        raise ValueError(
            f"`targets.named(name)` must be one of {', '.join(map(repr, _TABLE))}. "
            f"Got {name!r}. For another device, make a `coop_jax.targets.Target`."
        )
    return target


def target_of(device: Any) -> Target:
    """The target that describes a JAX device.

    An accelerator that the table does not know is given the rates of the nearest one
    of its platform: only the ratio of the two rates decides between plans.
    """
    if device.platform == "cpu":
        return local_cpu()
    kind = device.device_kind.lower()
    for name, target in _TABLE.items():
        if name in kind:
            return target
    return _TABLE["h100"] if device.platform in ("gpu", "cuda") else _TABLE["tpu v5e"]


def local_cpu() -> Target:
    """This machine's processor, with its two rates measured once and cached on disk."""
    flops, bandwidth = _cpu_rates()
    # Half-precision matrices are converted to float32 on CPU: no faster.
    return Target("cpu", "cpu", {32: flops, 16: flops}, bandwidth, 64)


@functools.cache
def _cpu_rates() -> tuple[float, float]:
    path = _cache_file()
    try:
        cached = json.loads(path.read_text())
        return float(cached["flops_per_second"]), float(cached["bytes_per_second"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    rates = _measure_cpu()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = ("flops_per_second", "bytes_per_second")
        path.write_text(json.dumps(dict(zip(names, rates, strict=True))))
    except OSError:
        pass  # a read-only home only costs the measurement again
    return rates


def _cache_file() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "coop_jax" / f"cpu-rates-jax-{jax.__version__}.json"


def _measure_cpu() -> tuple[float, float]:
    """Best of a few runs of a matrix product and of a vector add, one digit kept.

    One significant digit: plans must not change with the noise of the machine.
    """
    device = jax.devices("cpu")[0]
    n, length = 1024, 1 << 23
    with jax.default_device(device), jax.ensure_compile_time_eval():
        matrix = jax.device_put(np.ones((n, n), np.float32), device)
        vector = jax.device_put(np.ones(length, np.float32), device)
        product = jax.jit(lambda a: a @ a).lower(matrix).compile()
        add = jax.jit(lambda a: a + 1).lower(vector).compile()
        seconds = [_best_seconds(product, matrix), _best_seconds(add, vector)]
    rates = 2 * n**3 / seconds[0], 2 * 4 * length / seconds[1]
    return float(f"{rates[0]:.0e}"), float(f"{rates[1]:.0e}")


def _best_seconds(compiled: Any, operand: Any, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(operand))
        best = min(best, time.perf_counter() - start)
    return best
