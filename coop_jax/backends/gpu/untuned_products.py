"""Products of absent GPUs: by cuBLAS, as most are where a GPU is there to time kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from coop_jax.base import _compat

_OPTION = "xla_gpu_enable_triton_gemm"


def product_options(device: Any, jit_options: Mapping[str, Any]) -> dict[str, Any]:
    """The compiler options that choose the kernels of products; none for a GPU that is
    there, or where the user chose them.

    Arguments:
        device: the GPU that is compiled for.
        jit_options: compiler options that the step was jitted with.
    """
    is_chosen = _OPTION in jit_options or _OPTION in os.environ.get("XLA_FLAGS", "")
    if is_chosen or not _compat.is_absent(device):
        return {}
    return {_OPTION: False}
