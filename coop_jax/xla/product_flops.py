"""Product FLOPs: floating point operations of the products and convolutions in a module.

Products are instructions of their own, or calls of a library whose numbers are written
down in the platform's notes (`backend_config`) or as those of a convolution.
"""

from __future__ import annotations

import json
import math
from typing import Any

from coop_jax.trace.costs import meets_patches
from coop_jax.xla.hlo_module import HloModule, Instruction
from coop_jax.xla.protobuf_wire import fields, integers, repeated
from coop_jax.xla.shapes import dimensions_of, leaves

# Field numbers of xla/xla_data.proto.
_PRODUCT_CONTRACTED = 1  # Of the left operand.
_KERNEL_OUTPUT_FEATURE, _INPUT_SPATIAL, _KERNEL_SPATIAL, _OUTPUT_SPATIAL = 4, 11, 6, 12
_INPUT_FEATURE, _KERNEL_INPUT_FEATURE, _OUTPUT_FEATURE = 8, 3, 10
_WINDOW_DIMENSIONS = 1
_WINDOW_SIZE = 1
_STRIDE, _PADDING_LOW, _DILATION, _BASE_DILATION = 2, 3, 5, 6

_LIBRARY_PRODUCTS = "__cublas$"
# Positions of the kernel and of the convolution's result among operands (0, 1) and the
# call's result (-1).
_LIBRARY_CONVOLUTIONS = {
    "__cudnn$convForward": (0, 1, -1),
    "__cudnn$convBiasActivationForward": (0, 1, -1),
    "__cudnn$convForwardGraph": (0, 1, -1),
    "__cudnn$convBackwardInput": (-1, 1, 0),
    "__cudnn$convBackwardFilter": (0, -1, 1),
}


def product_flops(module: HloModule, instruction: Instruction) -> int:
    """Floating point operations of one product or convolution; 0 for anything else.

    A convolution's products with padding, or with the holes of a dilated input, are not
    counted.

    Arguments:
        module: the module that contains it.
        instruction: an instruction; those of the computations that it calls do not count.
    """
    if instruction.opcode == "dot":
        return _dot_flops(
            module, instruction, repeated(instruction.product, _PRODUCT_CONTRACTED)
        )
    if instruction.opcode == "convolution":
        return _convolution_flops(module, instruction, (0, 1, -1))
    if instruction.opcode == "custom-call":
        if instruction.target in _LIBRARY_CONVOLUTIONS:
            places = _LIBRARY_CONVOLUTIONS[instruction.target]
            return _convolution_flops(module, instruction, places)
        if instruction.target.startswith(_LIBRARY_PRODUCTS):
            return _dot_flops(module, instruction, _contracted(instruction))
    return 0


def patch_elements(module: HloModule, instruction: Instruction) -> int:
    """Of a convolution in groups of channels, or of three or more dimensions, the elements
    of the patches that its window meets; 0 of anything else, also of a library's.

    Arguments:
        module: the module that contains it.
        instruction: an instruction.
    """
    if instruction.opcode != "convolution":
        return 0
    source, kernel, result = (_shape(module, instruction, place) for place in (0, 1, -1))
    numbers = instruction.convolution
    # A field whose default 0 is not written.
    [channels] = repeated(numbers, _INPUT_FEATURE) or [0]
    [of_group] = repeated(numbers, _KERNEL_INPUT_FEATURE) or [0]
    [outputs] = repeated(numbers, _OUTPUT_FEATURE) or [0]
    window = [kernel[axis] for axis in repeated(numbers, _KERNEL_SPATIAL)]
    if not meets_patches(window, is_grouped=source[channels] != kernel[of_group]):
        return 0
    positions = math.prod(result) // result[outputs]
    return positions * math.prod(window) * source[channels]


def window_taps(module: HloModule, instruction: Instruction) -> int:
    """Of a reduction of windows the pairs of an element of its result and one of its
    operand that meet, without padding; of a `select-and-scatter` those of its source.

    Arguments:
        module: the module that contains it.
        instruction: one of these.
    """
    place = 1 if instruction.opcode == "select-and-scatter" else -1
    sides = _shape(module, instruction, 0), _shape(module, instruction, place)
    windows = [v for f, v in fields(instruction.window) if f == _WINDOW_DIMENSIONS]
    taps = 1
    for window, source, result in zip(windows, *sides, strict=True):
        [size] = repeated(window, _WINDOW_SIZE) or [1]
        taps *= _met(window, source, size, result)
    return taps


def _shape(module: HloModule, instruction: Instruction, place: int) -> tuple[int, ...]:
    """The dimensions of an operand, or of the first result (-1)."""
    if place >= 0:
        instruction = module.instructions[instruction.operands[place]]
    _, array = next(leaves(instruction.shape))
    return dimensions_of(array)


def _dot_flops(module: HloModule, instruction: Instruction, contracted: list[int]) -> int:
    left = _shape(module, instruction, 0)
    depth = math.prod(left[i] for i in contracted)
    return 2 * math.prod(_shape(module, instruction, -1)) * depth


def _contracted(instruction: Instruction) -> list[int]:
    """The contracted dimensions of a library's product, from the platform's notes."""
    notes: Any = json.loads(instruction.backend_config)
    numbers = notes.get("gemm_backend_config", notes).get("dot_dimension_numbers", {})
    return [int(i) for i in numbers.get("lhs_contracting_dimensions", [])]


def _convolution_flops(
    module: HloModule, instruction: Instruction, places: tuple[int, int, int]
) -> int:
    """As of a forward convolution with the operands and the result at these places."""
    source, kernel, result = (_shape(module, instruction, place) for place in places)
    numbers = instruction.convolution
    windows = [v for f, v in fields(instruction.window) if f == _WINDOW_DIMENSIONS]
    # A field whose default 0 is not written.
    [output_feature] = repeated(numbers, _KERNEL_OUTPUT_FEATURE) or [0]
    outputs = kernel[output_feature]
    flops = 2 * math.prod(result) * math.prod(kernel) // outputs
    spatial = zip(
        repeated(numbers, _INPUT_SPATIAL),
        repeated(numbers, _KERNEL_SPATIAL),
        repeated(numbers, _OUTPUT_SPATIAL),
        windows,
        strict=True,
    )
    for in_axis, kernel_axis, out_axis, window in spatial:
        sizes = source[in_axis], kernel[kernel_axis], result[out_axis]
        flops = flops * _met(window, *sizes) // (sizes[1] * sizes[2])
    return flops


def _met(window: bytes, source: int, kernel: int, result: int) -> int:
    """Pairs of a position in the result and one in the kernel that meet the input."""
    values = {field: integers(value)[0] for field, value in fields(window)}
    stride, dilation = values.get(_STRIDE, 1), values.get(_DILATION, 1)
    padding = _signed(values.get(_PADDING_LOW, 0))
    holes = values.get(_BASE_DILATION, 1)
    count = 0
    for k in range(kernel):
        first = k * dilation - padding  # where the result's position 0 reads
        if holes == 1:
            low = max(0, -(first // stride))
            high = min(result, -(-(source - first) // stride))
            count += max(0, high - low)
        else:
            count += sum(
                0 <= at < source * holes and at % holes == 0
                for at in range(first, first + result * stride, stride)
            )
    return count


def _signed(number: int) -> int:
    """A signed 64-bit integer from its encoding."""
    return number - 2**64 if number >= 2**63 else number
