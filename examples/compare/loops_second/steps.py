"""The twelve steps with loops that chose nothing, by name.

Each is `make(policy) -> (step, arguments)`; with a policy every loop's body is wrapped in
`jax.checkpoint`. The first argument is donated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare.loops_second.equinox_layers import equinox_encoder
from compare.loops_second.flax_layers import (
    linen_decoder,
    linen_remat_scan,
    nnx_decoder,
)
from compare.loops_second.loops_by_hand import (
    chunked_loss,
    custom_gradient,
    experts,
    microbatches,
    two_stacks,
)
from compare.loops_second.recurrences import lstm_stack, neural_ode, selective_scan
from compare.loops_second.training import Step

STEPS: dict[str, Callable[[Any], Step]] = {
    make.__name__: make
    for make in (
        nnx_decoder,
        linen_decoder,
        linen_remat_scan,
        equinox_encoder,
        custom_gradient,
        chunked_loss,
        lstm_stack,
        microbatches,
        selective_scan,
        neural_ode,
        experts,
        two_stacks,
    )
}
