"""Compiles a chain of exchanges for an H200 that need not be there.

A program of its own: with JAX's CUDA plugin and no GPU, JAX starts only if made to use
the CPU before it is imported. Prints what the compiler made of the chain, as JSON.
"""

import json
import pathlib
import sys

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from ffi.exchanges import TARGET, exchange

from coop_jax import _ext
from coop_jax.xla import absent_devices


def chain(arena, x):
    for _ in range(6):
        arena, _, [y] = exchange(
            arena, [], [x + 1], store_at=[256], load_at=[256], loads=[(x.shape, x.dtype)]
        )
        x = x * y
    return arena, x


def main():
    handler = _ext.registrations()["CUDA"]["coop_exchange"]
    jax.ffi.register_ffi_target(TARGET, handler, platform="CUDA")
    device = absent_devices.named_device("h200")
    shapes = (
        jax.ShapeDtypeStruct((1 << 20,), np.uint8),
        jax.ShapeDtypeStruct((1024,), np.float32),
    )
    step = jax.jit(chain, donate_argnums=0)
    compiled = step.lower(*absent_devices.placed(shapes, device)).compile()
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    found = {
        "device": device.device_kind,
        "exchanges": text.count(f'custom_call_target="{TARGET}"'),
        "copies": text.count(" copy(") + text.count("copy-start"),
        "alias_bytes": memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
