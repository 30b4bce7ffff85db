"""HLO module: XLA's optimized program, decoded from its protocol buffer.

Field numbers are stable (openxla/xla, `xla/service/hlo.proto`); only the fields that
the stored values follow from are decoded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from coop_jax.xla.protobuf_wire import fields, integers, repeated
from coop_jax.xla.shapes import Index

_MODULE_COMPUTATIONS, _MODULE_ENTRY_ID, _MODULE_SCHEDULE, _MODULE_ALIASES = 3, 6, 7, 8
_ALIASES_ENTRIES, _ALIAS_OUTPUT_INDEX = 1, 1
_SCHEDULE_SEQUENCES, _MAP_KEY, _MAP_VALUE, _SEQUENCE_INSTRUCTIONS = 1, 1, 2, 1
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID, _COMPUTATION_ROOT_ID = 2, 5, 6
_INSTRUCTION_NAME, _INSTRUCTION_OPCODE, _INSTRUCTION_SHAPE = 1, 2, 3
_INSTRUCTION_METADATA, _INSTRUCTION_LITERAL, _INSTRUCTION_PARAMETER = 7, 8, 9
_INSTRUCTION_TUPLE_INDEX = 13
_INSTRUCTION_DIMENSIONS, _INSTRUCTION_WINDOW = 14, 15
_INSTRUCTION_CONVOLUTION, _INSTRUCTION_PRODUCT = 16, 30
_INSTRUCTION_TARGET, _INSTRUCTION_FOURIER = 28, 32
_INSTRUCTION_ID, _INSTRUCTION_OPERANDS, _INSTRUCTION_CALLED = 35, 36, 38
_INSTRUCTION_BACKEND_CONFIG, _INSTRUCTION_ALIASING = 43, 74
_METADATA_OP_NAME = 2
_ALIASING_OUTPUT_INDEX, _ALIASING_OPERAND, _ALIASING_OPERAND_INDEX = 1, 2, 3
# Bytes of an encoded scalar with its shape; arrays are not needed.
_SMALL_LITERAL = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction.

    Attributes:
        computation: id of the computation that contains it.
        shape: its shape, still encoded (`xla.ShapeProto`).
        tuple_index: the element that a get-tuple-element takes.
        backend_config: notes of the platform's own passes, text or bytes.
        aliasing: results that share an operand's memory, still encoded.
        parameter: the position of a parameter.
        window, convolution, product: the numbers of a convolution or product, still
            encoded (`xla.Window`, `xla.ConvolutionDimensionNumbers`,
            `xla.DotDimensionNumbers`).
        target: what a custom call calls.
        literal: a constant's value, still encoded; left out where it is large.
        dimensions: those that a sort, reduction, transposition or the like names.
        fourier: the lengths of a Fourier transform, by dimension.
    """

    name: str
    opcode: str
    op_name: str
    computation: int
    operands: tuple[int, ...]
    called: tuple[int, ...]
    shape: bytes = b""
    tuple_index: int = 0
    backend_config: bytes = b""
    aliasing: tuple[bytes, ...] = ()
    parameter: int = 0
    window: bytes = b""
    convolution: bytes = b""
    product: bytes = b""
    target: str = ""
    literal: bytes = b""
    dimensions: tuple[int, ...] = ()
    fourier: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HloModule:
    """The optimized module.

    Attributes:
        instructions: by id, in the order of the module.
        roots: root instruction id by computation id.
        entry: id of the entry computation.
        sequences: instructions in execution order, by computation id; empty where
            the module has no schedule.
        aliased_outputs: shape indices of the results that take over an argument.
    """

    instructions: dict[int, Instruction]
    roots: dict[int, int]
    entry: int
    sequences: dict[int, tuple[int, ...]]
    aliased_outputs: frozenset[tuple[int, ...]]


def aliased(instruction: Instruction) -> Iterator[tuple[Index, int, Index]]:
    """(shape index of a result, operand, shape index in it) that share their memory, as a
    custom call or a fusion says of itself."""
    for entry in instruction.aliasing:
        yield (
            tuple(repeated(entry, _ALIASING_OUTPUT_INDEX)),
            sum(repeated(entry, _ALIASING_OPERAND)),
            tuple(repeated(entry, _ALIASING_OPERAND_INDEX)),
        )


def read_module(data: bytes) -> HloModule:
    """Decode a serialized `xla.HloModuleProto`."""
    instructions, roots, sequences, aliased, entry = {}, {}, {}, set(), 0
    for field, value in fields(data):
        if field == _MODULE_ENTRY_ID:
            entry = value
        elif field == _MODULE_COMPUTATIONS:
            bodies = []
            computation = root = 0
            for inner, inner_value in fields(value):
                if inner == _COMPUTATION_INSTRUCTIONS:
                    bodies.append(inner_value)
                elif inner == _COMPUTATION_ID:
                    computation = inner_value
                elif inner == _COMPUTATION_ROOT_ID:
                    root = inner_value
            roots[computation] = root
            for body in bodies:
                number, instruction = _read_instruction(body, computation)
                instructions[number] = instruction
        elif field == _MODULE_SCHEDULE:
            for inner, inner_value in fields(value):
                if inner == _SCHEDULE_SEQUENCES:
                    item = dict(fields(inner_value))
                    sequence = repeated(item.get(_MAP_VALUE, b""), _SEQUENCE_INSTRUCTIONS)
                    sequences[item.get(_MAP_KEY, 0)] = tuple(sequence)
        elif field == _MODULE_ALIASES:
            for inner, inner_value in fields(value):
                if inner == _ALIASES_ENTRIES:
                    aliased.add(tuple(repeated(inner_value, _ALIAS_OUTPUT_INDEX)))
    return HloModule(instructions, roots, entry, sequences, frozenset(aliased))


# The attribute of an instruction that a field gives as it is.
_PLAIN = {
    _INSTRUCTION_SHAPE: "shape",
    _INSTRUCTION_TUPLE_INDEX: "tuple_index",
    _INSTRUCTION_BACKEND_CONFIG: "backend_config",
    _INSTRUCTION_PARAMETER: "parameter",
    _INSTRUCTION_WINDOW: "window",
    _INSTRUCTION_CONVOLUTION: "convolution",
    _INSTRUCTION_PRODUCT: "product",
}


def _read_instruction(data: bytes, computation: int) -> tuple[int, Instruction]:
    """An instruction with its id."""
    name = opcode = op_name = target = ""
    number = 0
    operands: list[int] = []
    dimensions: list[int] = []
    fourier: list[int] = []
    called: list[int] = []
    aliasing: list[bytes] = []
    plain: dict[str, Any] = {}
    for field, value in fields(data):
        if field in _PLAIN:
            plain[_PLAIN[field]] = value
        elif field == _INSTRUCTION_NAME:
            name = value.decode()
        elif field == _INSTRUCTION_OPCODE:
            opcode = value.decode()
        elif field == _INSTRUCTION_ID:
            number = value
        elif field == _INSTRUCTION_OPERANDS:
            operands += integers(value)
        elif field == _INSTRUCTION_DIMENSIONS:
            dimensions += integers(value)
        elif field == _INSTRUCTION_FOURIER:
            fourier += integers(value)
        elif field == _INSTRUCTION_CALLED:
            called += integers(value)
        elif field == _INSTRUCTION_ALIASING:
            aliasing.append(value)
        elif field == _INSTRUCTION_TARGET:
            target = value.decode()
        elif field == _INSTRUCTION_LITERAL and len(value) <= _SMALL_LITERAL:
            plain["literal"] = value
        elif field == _INSTRUCTION_METADATA:
            for inner, inner_value in fields(value):
                if inner == _METADATA_OP_NAME:
                    op_name = inner_value.decode()
    return number, Instruction(
        name,
        opcode,
        op_name,
        computation,
        tuple(operands),
        tuple(called),
        aliasing=tuple(aliasing),
        target=target,
        dimensions=tuple(dimensions),
        fourier=tuple(fourier),
        **plain,
    )
