"""Executable seconds: the time of a compiled step, from the instructions it consists of.

One function for any version of a step: as written, under a policy, planned. Every
instruction of the schedule takes the longer of its arithmetic at the target's rates and of
its traffic with main memory, and a launch; a loop as often as it iterates. So what fuses
into its reader costs little, and what a fence stores, transposes or tears apart is counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from coop_jax.targets import Target
from coop_jax.trace.factorizations import (
    TRIANGULAR_SOLVE,
    factorization_of,
    factorization_operations,
)
from coop_jax.trace.operations import (
    LONG_OPERATIONS,
    RANDOM_BITS_OPERATIONS,
    TRANSCENDENTAL_OPERATIONS,
    fourier_operations,
    selection_operations,
    sort_operations,
)
from coop_jax.xla.buffer_assignment import published_module
from coop_jax.xla.hlo_module import HloModule, Instruction
from coop_jax.xla.loop_trips import loop_trips
from coop_jax.xla.product_flops import patch_elements, product_flops, window_taps
from coop_jax.xla.shapes import (
    dimensions_of,
    element_bits,
    is_float,
    is_tuple_shape,
    num_elements,
)
from coop_jax.xla.touched_bytes import FREE, TouchedBytes

_TRANSCENDENTAL = frozenset(
    "erf exponential exponential-minus-one log log-plus-one logistic rsqrt sqrt "
    "tanh".split()
)
_LONG = frozenset("atan2 cbrt cosine power sine tan".split())
_ARITHMETIC = frozenset(
    "abs add and ceil clamp compare convert divide floor maximum minimum multiply negate "
    "not or popcnt remainder round-nearest-afz round-nearest-even select shift-left "
    "shift-right-arithmetic shift-right-logical sign subtract xor".split()
)
_NO_KERNELS: Mapping[str, int] = MappingProxyType({})
_WINDOWS = frozenset("reduce-window select-and-scatter".split())
_FACTORIZATIONS = {"cholesky": "cholesky", "triangular-solve": TRIANGULAR_SOLVE}
_SELECTIONS = frozenset(("TopK", "__gpu$TopK"))  # Custom calls.


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """What an executable does in one run, on one device.

    Attributes:
        seconds: modelled seconds on a target.
        product_flops: floating point operations of products and convolutions.
        touched_bytes: bytes read from main memory and written to it.
        launches: instructions that run, iterations of loops counted.
    """

    seconds: float = 0.0
    product_flops: int = 0
    touched_bytes: int = 0
    launches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.seconds + other.seconds,
            self.product_flops + other.product_flops,
            self.touched_bytes + other.touched_bytes,
            self.launches + other.launches,
        )

    def times(self, count: int) -> Work:
        """The work of so many runs."""
        return Work(
            self.seconds * count,
            self.product_flops * count,
            self.touched_bytes * count,
            self.launches * count,
        )


def executable_work(
    compiled: Any, target: Target, kernels: Mapping[str, int] = _NO_KERNELS
) -> Work | None:
    """What a compiled step does.

    Arguments:
        compiled: a `jax.stages.Compiled`, for a device that may be absent.
        target: the device's rates.
        kernels: floating point operations of kernels by name (`trace.kernels`), which the
            executable does not say.

    Returns:
        None where the platform does not publish its module.
    """
    module = published_module(compiled)
    return module and module_work(module, target, kernels)


def executable_seconds(
    compiled: Any, target: Target, kernels: Mapping[str, int] = _NO_KERNELS
) -> float | None:
    """Modelled seconds of a compiled step; arguments and result as of `executable_work`."""
    work = executable_work(compiled, target, kernels)
    return None if work is None else work.seconds


def module_work(
    module: HloModule, target: Target, kernels: Mapping[str, int] = _NO_KERNELS
) -> Work:
    """What an optimized module does.

    Arguments:
        module: it; scheduled, or with its instructions in an order of execution.
        target: the device's rates.
        kernels: as of `executable_work`.
    """
    return _Pricing(module, target, kernels).of_computation(module.entry)


class _Pricing:
    def __init__(
        self, module: HloModule, target: Target, kernels: Mapping[str, int] = _NO_KERNELS
    ) -> None:
        self._module = module
        self._kernels = kernels
        self._target = target
        self._touched = TouchedBytes(module)
        self._known: dict[int, Work] = {}

    def of_computation(self, computation: int) -> Work:
        known = self._known.get(computation)
        if known is None:
            known = sum(map(self._of, self._touched.body(computation)), Work())
            self._known[computation] = known
        return known

    def _of(self, instruction: Instruction) -> Work:
        opcode = instruction.opcode
        if opcode in FREE:
            return Work()
        if opcode == "while":
            both = sum(map(self.of_computation, instruction.called), Work())
            return both.times(loop_trips(self._module, instruction) or 1)
        if opcode in ("call", "async-start"):
            return sum(map(self.of_computation, instruction.called), Work())
        if opcode == "conditional":
            branches = map(self.of_computation, instruction.called)
            return max(branches, key=lambda work: work.seconds)
        return self._of_kernel(instruction)

    def _of_kernel(self, instruction: Instruction) -> Work:
        target, module = self._target, self._module
        arithmetic, flops = 0.0, 0
        for inner in self._kernel(instruction):
            products = product_flops(module, inner) or self._of_named(inner)
            if products:
                flops += products
                operand = module.instructions[inner.operands[0]]
                width = element_bits(operand.shape) // 8
                patches = patch_elements(module, inner)
                arithmetic += target.product_seconds(products, width, patches)
            elif scanned := self._scanned_operations(inner):
                arithmetic += target.window_seconds(scanned)
            else:
                arithmetic += self._operations(inner) / target.vector_rate
        touched = self._touched.of(instruction)
        seconds = max(arithmetic, touched / target.bytes_per_second)
        return Work(seconds + target.launch_seconds, flops, touched, 1)

    def _scanned_operations(self, instruction: Instruction) -> int:
        """Operations of a reduction that no processor has vectors for: of windows, or of
        several values at once, as for the index of an extremum; 0 of anything else."""
        if instruction.opcode in _WINDOWS:
            taps = window_taps(self._module, instruction)
        elif instruction.opcode == "reduce" and is_tuple_shape(instruction.shape):
            taps = num_elements(self._first_operand(instruction))
        else:
            return 0
        # A `select-and-scatter` compares and adds.
        return taps * max(map(self._of_scalars, instruction.called), default=1)

    def _of_scalars(self, computation: int) -> int:
        """Operations of what a reduction does with two elements."""
        return sum(map(self._operations, self._touched.body(computation)))

    def _of_named(self, instruction: Instruction) -> int:
        """Operations of a kernel that was written by hand: "name" or "name.number"."""
        if instruction.opcode != "custom-call":
            return 0
        return self._kernels.get(instruction.name.partition(".")[0], 0)

    def _kernel(self, instruction: Instruction) -> Iterator[Instruction]:
        if instruction.opcode != "fusion":
            yield instruction
            return
        for computation in instruction.called:
            for inner in self._touched.body(computation):
                yield from self._kernel(inner)

    def _of_factorization(self, instruction: Instruction, name: str) -> int:
        operands = [self._module.instructions[i] for i in instruction.operands[:2]]
        shapes = [dimensions_of(operand.shape) for operand in operands]
        return factorization_operations(name, *shapes)

    def _of_fourier(self, instruction: Instruction) -> int:
        sides = self._first_operand(instruction), instruction.shape
        is_real = element_bits(sides[0]) != element_bits(sides[1])
        elements = max(map(num_elements, sides))
        return fourier_operations(elements, instruction.fourier, is_real=is_real)

    def _first_operand(self, instruction: Instruction) -> bytes:
        return self._module.instructions[instruction.operands[0]].shape

    def _operations(self, instruction: Instruction) -> int:
        """Operations of anything but a product."""
        opcode = instruction.opcode
        if opcode == "reduce":
            return num_elements(self._first_operand(instruction))
        if opcode == "sort":
            rows = self._first_operand(instruction)
            [along] = instruction.dimensions
            return sort_operations(num_elements(rows), dimensions_of(rows)[along])
        if instruction.target in _SELECTIONS:
            rows = self._first_operand(instruction)
            return selection_operations(num_elements(rows), dimensions_of(rows)[-1])
        name = _FACTORIZATIONS.get(opcode) or factorization_of(instruction.target)
        if name is not None:
            return self._of_factorization(instruction, name)
        if opcode == "fft":
            return self._of_fourier(instruction)
        if opcode in _LONG or (opcode == "remainder" and is_float(instruction.shape)):
            return LONG_OPERATIONS * num_elements(instruction.shape)
        if opcode in _ARITHMETIC:
            return num_elements(instruction.shape)
        if opcode in _TRANSCENDENTAL:
            return TRANSCENDENTAL_OPERATIONS * num_elements(instruction.shape)
        if opcode == "rng-bit-generator":
            return RANDOM_BITS_OPERATIONS * num_elements(instruction.shape)
        return 0
