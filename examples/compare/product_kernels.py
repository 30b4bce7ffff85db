"""Which kernels XLA:GPU chooses for the products of a transformer, and its temporaries.

    python examples/compare/product_kernels.py [--target h200] [--dtype float32]

On the GPU that is there, or for one that is absent: as XLA leaves them, and with
`XLA_FLAGS=--xla_gpu_enable_triton_gemm=false`.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import re
import sys

if "--target" in sys.argv:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
from models import transformer_problem

from coop_jax.compile.traced_step import TracedStep
from coop_jax.xla.absent_devices import named_device, placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="an absent GPU; default: the one that is there")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    problem = transformer_problem(
        num_layers=2,
        width=768,
        num_heads=12,
        sequence_length=512,
        batch_size=8,
        dtype=jnp.dtype(arguments.dtype),
    )
    args = problem.state, problem.batch, problem.key
    device = named_device(arguments.target) if arguments.target else jax.devices()[0]
    args = placed(args, device) if arguments.target else jax.device_put(args, device)
    traced = TracedStep.trace(problem.train_step, {}, args, {})
    compiled = traced.compile_lowered(traced.lower_as_written())
    text = compiled.as_text()
    kinds = re.findall(
        r'custom_call_target="(__cublas[^"]+)"|"kind":"(__triton[^"]*)"', text
    )
    print(
        f"{device.device_kind}, jax {jax.__version__}, {arguments.dtype}: "
        f"{compiled.memory_analysis().temp_size_in_bytes} bytes of temporaries, "
        f"{dict(collections.Counter(a or b for a, b in kinds))}"
    )


if __name__ == "__main__":
    main()
