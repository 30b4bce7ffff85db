"""Measured seconds of an executable's instructions, from JAX's profiler."""

from __future__ import annotations

import collections
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
from jax.profiler import ProfileData

_TOGETHER = "command_buffer"


def instruction_times(call: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Per instruction of what a call runs on the first GPU: seconds, and kernels.

    Arguments:
        call: runs the executable once and returns its results.

    Returns:
        By the instruction's name in the optimized module; kernels that XLA launches
        together, as a CUDA graph, by the kernel's.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        [file] = pathlib.Path(folder).rglob("*.xplane.pb")
        data = ProfileData.from_file(str(file))
    seconds: dict[str, float] = collections.Counter()
    kernels: dict[str, int] = collections.Counter()
    for plane in data.planes:
        if plane.name != "/device:GPU:0":
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue  # the others are sums of the same events
            for event in line.events:
                name = str(dict(event.stats).get("hlo_op", event.name))
                if name.startswith(_TOGETHER):
                    name = event.name
                seconds[name] += 1e-9 * event.duration_ns
                kernels[name] += 1
    return {name: (seconds[name], kernels[name]) for name in seconds}
