"""Touched bytes: what an instruction reads from main memory and writes to it.

A slice, a gather or an update in place touches a part of its array, inside of a fusion
too: a loop that reads one layer's weights from the stack does not read the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coop_jax.xla.hlo_module import HloModule, Instruction, aliased
from coop_jax.xla.shapes import leaves, num_elements, sizes_of

# They only say what their operands are called.
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast opt-barrier after-all domain "
    "add-dependency partition-id replica-id copy-done async-update async-done "
    "all-reduce-done all-gather-done collective-permute-done send-done recv-done".split()
)
_PARTS = frozenset("slice dynamic-slice gather".split())
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # The operand with the update.
# Custom calls whose results hold nothing yet, and those of `emit.order_after`.
_UNTOUCHED = frozenset(["AllocateBuffer", "coop_after"])
# Inside of a fusion an array passes through them in the parts that are read.
_SAME_ELEMENTS = frozenset("bitcast reshape convert copy transpose".split())


class TouchedBytes:
    """What the instructions of a module touch.

    Arguments:
        module: an optimized module.
    """

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._bodies: dict[int, list[Instruction]] = {}
        self._readers: dict[int, list[tuple[Instruction, int]]] = {}
        for instruction in module.instructions.values():
            self._bodies.setdefault(instruction.computation, []).append(instruction)
            for place, operand in enumerate(instruction.operands):
                read = module.instructions[operand]
                self._readers.setdefault(id(read), []).append((instruction, place))

    def body(self, computation: int) -> Sequence[Instruction]:
        """The instructions of a computation."""
        return self._bodies.get(computation, [])

    def of(self, instruction: Instruction) -> int:
        """Bytes of main memory that an instruction reads and writes."""
        if instruction.opcode in FREE:
            return 0
        if instruction.opcode == "fusion":
            return self._of_fusion(instruction)
        operands = [self._module.instructions[i] for i in instruction.operands]
        if instruction.opcode in _UPDATES:
            return 2 * _main_bytes(operands[_UPDATES[instruction.opcode]].shape)
        if instruction.opcode in _PARTS:
            return 2 * _main_bytes(instruction.shape)
        if instruction.opcode == "copy-start":  # Its shape holds the operand, too.
            written = next(leaves(instruction.shape))[1]
            return _main_bytes(operands[0].shape) + _main_bytes(written)
        if instruction.target in _UNTOUCHED:
            return 0
        # A result that takes over its operand is as it was: all of a fence, the arena of
        # an exchange.
        kept = list(aliased(instruction))
        arguments = {
            number: self._module.instructions[number].shape
            for place, number in enumerate(instruction.operands)
            if place not in [operand for _, operand, _ in kept]
        }
        written = [
            _main_bytes(array)
            for index, array in leaves(instruction.shape)
            if index not in [index for index, _, _ in kept]
        ]
        return sum(written) + sum(map(_main_bytes, arguments.values()))

    def _of_fusion(self, fusion: Instruction) -> int:
        [computation] = fusion.called
        read = 0
        for inner in self.body(computation):
            if inner.opcode == "parameter":
                operand = self._module.instructions[fusion.operands[inner.parameter]]
                read += self._read(inner, _main_bytes(operand.shape))
        results = self._results(self._module.roots[computation])
        shapes = [array for _, array in leaves(fusion.shape)]
        return read + sum(map(self._written, results, shapes))

    def _parameter(self, fusion: Instruction, place: int) -> Instruction:
        """What an operand of a fusion is called inside of it."""
        [computation] = fusion.called
        return next(
            inner
            for inner in self.body(computation)
            if inner.opcode == "parameter" and inner.parameter == place
        )

    def _results(self, number: int) -> Iterator[Instruction]:
        """The values in a fusion's result."""
        instruction = self._module.instructions[number]
        if instruction.opcode == "tuple":
            for operand in instruction.operands:
                yield from self._results(operand)
        else:
            yield instruction

    def _written(self, result: Instruction, shape: bytes) -> int:
        """Bytes of a fusion's result that are written."""
        whole, elements = _main_bytes(shape), num_elements(shape)
        while result.opcode in _SAME_ELEMENTS or result.opcode == "fusion":
            number = result.operands[0]
            if result.opcode == "fusion":
                number = self._module.roots[result.called[0]]
            result = self._module.instructions[number]
        if result.opcode not in _UPDATES or not elements:
            return whole
        update = result.operands[_UPDATES[result.opcode]]
        return whole * num_elements(self._module.instructions[update].shape) // elements

    def _read(self, parameter: Instruction, whole: int) -> int:
        """Bytes of a fusion's parameter that are read."""
        elements = num_elements(parameter.shape)
        if not whole or not elements:
            return 0
        wanted, todo = 0, [parameter]
        while todo:
            value = todo.pop()
            for reader, place in self._readers.get(id(value), []):
                if reader.opcode in _SAME_ELEMENTS:
                    todo.append(reader)
                elif reader.opcode == "fusion":
                    todo.append(self._parameter(reader, place))
                elif place == 0 and reader.opcode in _PARTS:
                    wanted += num_elements(reader.shape)
                elif place or reader.opcode not in _UPDATES:
                    return whole
        return min(whole, whole * wanted // elements)


def _main_bytes(shape: bytes) -> int:
    return sum(sizes_of(array)[0] for _, array in leaves(shape))
