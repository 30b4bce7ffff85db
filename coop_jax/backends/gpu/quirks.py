"""The quirks of XLA:GPU."""

from __future__ import annotations

from coop_jax.backends.quirk import Quirk

_VERSIONS = "JAX 0.10.2 and 0.12.0, absent H200"

SHARED_ZEROS = Quirk(
    "shared_zeros",
    "The zeros that a max-pooling's gradient is scattered into are a real array. XLA "
    "shares it with every `relu` over that shape, from the first one in the step to the"
    " last gradient. Zeros that passed a fence are not equal to others.",
    _VERSIONS,
    "coop_jax.backends.gpu.shared_zeros",
    ("fence_hints",),
    "backends/gpu/test_shared_zeros.py",
)
NOTHING_IN_PLACE = Quirk(
    "nothing_in_place",
    "No elementwise operation writes over an operand, only scatters do.",
    _VERSIONS,
    "coop_jax.graph.step_graph",
    ("_read",),
    "backends/test_quirks.py",
)

GPU_QUIRKS = (SHARED_ZEROS, NOTHING_IN_PLACE)
