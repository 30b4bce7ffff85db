"""Costs: an equation to floating point operations, bytes and, on a target, seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coop_jax.base import _compat
from coop_jax.targets import Target
from coop_jax.trace.factorizations import FACTORIZATIONS, factorization_operations
from coop_jax.trace.operations import (
    LONG,
    LONG_OPERATIONS,
    RANDOM_BITS_OPERATIONS,
    TRANSCENDENTAL,
    TRANSCENDENTAL_OPERATIONS,
    fourier_operations,
    is_long,
    scanned_operations,
    sort_operations,
)
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import is_collective
from coop_jax.trace.shard_types import num_devices_of, num_shards_of

# Elementwise primitives whose result may take the place of an operand. Those that are in no
# other set take one operation for an element.
_ARITHMETIC = frozenset(
    "abs add add_any and bitcast_convert_type ceil clamp clz conj "
    "convert_element_type copy copy_p div eq floor ge gt integer_pow is_finite le lt "
    "max min mul ne neg nextafter not one_minus_square or population_count "
    "reduce_precision rem round select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign square stop_gradient sub xor".split()
)
ELEMENTWISE = TRANSCENDENTAL | LONG | _ARITHMETIC
# Values that are the same bytes under another shape: never a buffer of their own.
VIEWS = frozenset(
    "reshape squeeze expand_dims random_wrap random_unwrap coop_to_shards "
    "coop_to_whole".split()
)
_MOVES = frozenset(
    "broadcast_in_dim iota pad rev slice transpose concatenate dynamic_slice "
    "sharding_constraint split stack unstack".split()
)
_RANDOM_BITS = frozenset(("random_bits", "threefry2x32"))
_SORTS = {"sort": "dimension", "top_k": "axis"}  # With the parameter that says along what.
# Operations of many steps for each element, which matrix units are of no use for. They take
# the rate of vectors, as in the price of an executable (`xla.executable_seconds`): at that
# of matrices the bits of a dropout are made again, where to keep the mask takes a byte for
# each element.
_OF_VECTORS = frozenset(_SORTS) | _RANDOM_BITS | FACTORIZATIONS | {"fft"}


def aval_bytes(aval: Any) -> int:
    """Bytes of one value of a type; the only place where bytes are computed from a shape.

    PRNG keys count as the words that store them; tokens take none.
    """
    aval = _compat.physical_aval(aval)
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return 0
    if aval.dtype.name == "float0":
        return 0
    return math.prod(aval.shape) * np.dtype(aval.dtype).itemsize


def whole_bytes(aval: Any) -> int:
    """Bytes of one value of a type on all devices together: of a shard those of all."""
    return num_shards_of(aval) * aval_bytes(aval)


def is_view(eqn: Any) -> bool:
    return eqn.primitive.name in VIEWS


def may_vanish(eqn: Any) -> bool:
    """Whether XLA may remove the equation entirely, including its name."""
    return is_view(eqn) or eqn.primitive.name == "copy"


def is_elementwise(eqn: Any) -> bool:
    return eqn.primitive.name in ELEMENTWISE


def is_fusible(eqn: Any) -> bool:
    """Whether XLA can compute the equation in every consumer at no considerable cost.

    False for products, convolutions, reductions, sorts, scatters, loops, calls.
    """
    name = eqn.primitive.name
    return name in ELEMENTWISE or name in VIEWS or name in _MOVES


def flops(eqn: Any) -> int:
    """Floating point operations of one equation; a loop's body counts once per iteration.

    A kernel counts once for every program of its grid, also for those that it skips; what
    runs on shards once for every device. A `while_loop`, whose length is not known, counts
    one iteration; a `cond` its most expensive branch.
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return params["length"] * _body_flops(params["jaxpr"])
    if name == "while":
        return _body_flops(params["body_jaxpr"]) + _body_flops(params["cond_jaxpr"])
    if name == "cond":
        return max(_body_flops(branch) for branch in params["branches"])
    if name == "shard_map":
        return _body_flops(params["jaxpr"])
    nested = [p for p in params.values() if _compat.is_jaxpr(p)]
    is_leaf = name.startswith(("reduce", "scatter", "arg", "sort", "pallas_call"))
    if nested and not is_leaf:
        return sum(map(_body_flops, nested))
    return num_devices_of(eqn) * _own_flops(eqn)


def _own_flops(eqn: Any) -> int:
    """Those of an equation that calls no others, on one device."""
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        (contract, _), _ = params["dimension_numbers"]
        lhs = eqn.invars[0].aval.shape
        return 2 * _elements(eqn.outvars) * math.prod(lhs[i] for i in contract)
    if name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        kernel = eqn.invars[1].aval.shape
        outputs_channel = numbers.rhs_spec[0]
        return 2 * _elements(eqn.outvars) * math.prod(kernel) // kernel[outputs_channel]
    if name == "pallas_call":
        return _compat.num_kernel_programs(eqn) * _body_flops(params["jaxpr"])
    if name in FACTORIZATIONS:
        shapes = [v.aval.shape for v in eqn.invars]
        return factorization_operations(name, *shapes[:2])
    if name in _SORTS:
        rows = eqn.invars[0].aval
        axis = params.get(_SORTS[name], -1)
        return sort_operations(rows.size, rows.shape[axis])
    if is_window(eqn):
        return _elements(eqn.outvars) * math.prod(params["window_dimensions"])
    if name == "fft":
        return _fourier_flops(eqn)
    if name in _RANDOM_BITS:
        return RANDOM_BITS_OPERATIONS * _elements(eqn.outvars)
    if is_long(eqn):
        return LONG_OPERATIONS * _elements(eqn.outvars)
    if name in TRANSCENDENTAL:
        return TRANSCENDENTAL_OPERATIONS * _elements(eqn.outvars)
    if name in VIEWS or name in _MOVES:
        return 0
    most = max(_elements([v]) for v in [*eqn.outvars, *eqn.invars])
    return scanned_operations(eqn) or most


def _fourier_flops(eqn: Any) -> int:
    sides = [eqn.invars[0].aval, eqn.outvars[0].aval]
    is_real = any(side.dtype.kind != "c" for side in sides)
    lengths = eqn.params["fft_lengths"]
    return fourier_operations(max(s.size for s in sides), lengths, is_real=is_real)


def is_window(eqn: Any) -> bool:
    """Whether the equation reduces windows of its operand: pooling."""
    return eqn.primitive.name.startswith("reduce_window")


def meets_patches(window: Sequence[int], *, is_grouped: bool) -> bool:
    """Whether a convolution is one that libraries of processors have no kernel for: they
    have some for windows of one or two dimensions, with all channels in one group."""
    return is_grouped or len(window) > 2


def patch_elements(eqn: Any) -> int:
    """Of a convolution in groups of channels, or of three or more dimensions, the elements
    of the patches that its window meets; 0 of anything else."""
    if eqn.primitive.name != "conv_general_dilated":
        return 0
    source, kernel = (v.aval.shape for v in eqn.invars)
    numbers = eqn.params["dimension_numbers"]
    window = [kernel[i] for i in numbers.rhs_spec[2:]]
    if not meets_patches(window, is_grouped=eqn.params["feature_group_count"] > 1):
        return 0
    positions = _elements(eqn.outvars) // kernel[numbers.rhs_spec[0]]
    return positions * math.prod(window) * source[numbers.lhs_spec[1]]


def seconds(
    eqns: Iterable[Any], read_bytes: int, written_bytes: int, target: Target
) -> float:
    """Seconds of equations that run as one fused operation: a roofline. All devices that
    the program is divided over count together, as for `flops`.

    The larger of the arithmetic at the target's rate for the widest float among them
    and of the traffic between the fusion and main memory; and what devices send each other.
    """
    arithmetic, sent = 0.0, 0
    for eqn in eqns:
        sent += sent_bytes(eqn)
        widths = [
            v.aval.dtype.itemsize
            for v in [*reads(eqn), *writes(eqn)]
            if hasattr(v.aval, "dtype") and v.aval.dtype.name.startswith(("f", "bf"))
        ]
        if is_window(eqn) or scanned_operations(eqn):
            arithmetic += target.window_seconds(flops(eqn))
        elif eqn.primitive.name in _OF_VECTORS or is_long(eqn):
            arithmetic += flops(eqn) / target.vector_rate
        else:
            width = max(widths, default=4)
            patches = num_devices_of(eqn) * patch_elements(eqn)
            arithmetic += target.product_seconds(flops(eqn), width, patches)
    here = max(arithmetic, (read_bytes + written_bytes) / target.bytes_per_second)
    return here + sent / target.link_bytes_per_second


def sent_bytes(eqn: Any) -> int:
    """Bytes that a device sends to others in an equation, bodies included.

    Of a collective the larger of what it reads and makes. Loops and branches count as in
    `flops`.
    """
    if is_collective(eqn):
        return max(_bytes_of(reads(eqn)), _bytes_of(eqn.outvars))
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        return max(_body_sent(branch) for branch in params["branches"])
    sent = sum(_body_sent(p) for p in params.values() if _compat.is_jaxpr(p))
    return params["length"] * sent if name == "scan" else sent


def _body_sent(jaxpr: Any) -> int:
    return sum(map(sent_bytes, _compat.open_jaxpr(jaxpr)[0].eqns))


def _bytes_of(values: Iterable[Any]) -> int:
    return sum(whole_bytes(v.aval) for v in values)


def seconds_again(eqn: Any, target: Target) -> float:
    """Modelled time of an equation that runs where its results are read.

    Elementwise work is fused into its readers: it takes the time of its arithmetic alone.
    What an iteration of a loop reads is read in each: weights, and what it carries. Of a
    `while_loop` one iteration counts, without the test of its end; of a `cond` its most
    expensive branch.
    """
    if is_fusible(eqn):
        return seconds([eqn], 0, 0, target)
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        return params["length"] * _body_seconds(params["jaxpr"], target)
    if name == "while":
        return _body_seconds(params["body_jaxpr"], target)
    if name == "cond":
        return max(_body_seconds(branch, target) for branch in params["branches"])
    return seconds([eqn], _bytes_of(reads(eqn)), _bytes_of(eqn.outvars), target)


def _body_seconds(jaxpr: Any, target: Target) -> float:
    """Modelled time of a body: the longer of its equations and of the traffic of what it is
    given and returns."""
    body, _ = _compat.open_jaxpr(jaxpr)
    passed_bytes = _bytes_of([*body.invars, *body.outvars])
    again = math.fsum(seconds_again(eqn, target) for eqn in body.eqns)
    return max(again, passed_bytes / target.bytes_per_second)


def _elements(values: Iterable[Any]) -> int:
    return sum(math.prod(getattr(v.aval, "shape", ())) for v in values)


def _body_flops(jaxpr: Any) -> int:
    body, _ = _compat.open_jaxpr(jaxpr)
    return sum(flops(eqn) for eqn in body.eqns)
