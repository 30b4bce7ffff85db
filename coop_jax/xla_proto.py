"""Read XLA's buffer assignment out of a compiled executable.

XLA publishes, for every executable, the optimized module (`HloModuleProto`) and what
it stores where (`BufferAssignmentProto`). Both are protocol buffers with stable field
numbers (openxla/xla, `xla/service/hlo.proto`); the few fields needed here are decoded
by hand, so that no protobuf package is required. Compared with reading the HLO text,
this gives the exact buffers, sizes and addresses, and needs no grammar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

# Field numbers of xla/service/hlo.proto.
_MODULE_COMPUTATIONS, _MODULE_ENTRY_ID, _MODULE_SCHEDULE = 3, 6, 7
_SCHEDULE_SEQUENCES, _MAP_KEY, _MAP_VALUE, _SEQUENCE_INSTRUCTIONS = 1, 1, 2, 1
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID, _COMPUTATION_ROOT_ID = 2, 5, 6
_INSTRUCTION_NAME, _INSTRUCTION_OPCODE, _INSTRUCTION_METADATA = 1, 2, 7
_INSTRUCTION_ID, _INSTRUCTION_OPERANDS, _INSTRUCTION_CALLED = 35, 36, 38
_METADATA_OP_NAME = 2
_ASSIGNMENT_BUFFERS, _ASSIGNMENT_ALLOCATIONS = 1, 3
_BUFFER_ID, _BUFFER_SIZE, _BUFFER_DEFINED_AT = 1, 2, 3
_LOCATION_SHAPE_INDEX, _LOCATION_INSTRUCTION_ID = 3, 4
_ALLOCATION_SIZE, _ALLOCATION_IS_THREAD_LOCAL = 2, 3
_ALLOCATION_IS_PARAMETER, _ALLOCATION_IS_OUTPUT = 5, 7
_ALLOCATION_ASSIGNED, _ALLOCATION_IS_TUPLE, _ALLOCATION_IS_CONSTANT = 9, 11, 12
_ASSIGNED_BUFFER_ID, _ASSIGNED_OFFSET, _ASSIGNED_SIZE = 1, 2, 3


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One HLO instruction; `computation` is the id of the computation it stands in."""

    name: str
    opcode: str
    op_name: str
    computation: int
    operands: tuple[int, ...]
    called: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBuffer:
    """A value that XLA keeps in memory.

    `kind` says in which allocation: `"temp"`, `"output"` (an output that no argument
    shares), `"argument"` (arguments and the outputs that take them over) or `"other"`.
    """

    instruction: int
    shape_index: tuple[int, ...]
    size_bytes: int
    offset: int
    kind: str


@dataclasses.dataclass(frozen=True, slots=True)
class StoredModule:
    """The optimized module and its buffers.

    Attributes:
        instructions: by id, in the order of the module.
        roots: root instruction id by computation id.
        entry: id of the entry computation.
        schedule: instructions of the entry computation in execution order.
        buffers: everything that XLA stores.
    """

    instructions: dict[int, Instruction]
    roots: dict[int, int]
    entry: int
    schedule: tuple[int, ...]
    buffers: tuple[StoredBuffer, ...]


def read_stored_module(compiled: Any) -> StoredModule | None:
    """The module and buffers of a `jax.stages.Compiled`.

    Returns `None` where the platform does not publish them.
    """
    analysis = compiled.memory_analysis()
    assignment = getattr(analysis, "serialized_buffer_assignment_proto", b"")
    executable = compiled.runtime_executable()
    if not assignment or not hasattr(executable, "hlo_modules"):
        return None
    [module] = executable.hlo_modules()
    stored = _read_module(
        module.as_serialized_hlo_module_proto(), tuple(_read_buffers(assignment))
    )
    if any(b.instruction not in stored.instructions for b in stored.buffers):
        return None
    return stored


def _read_module(data: bytes, buffers: tuple[StoredBuffer, ...]) -> StoredModule:
    instructions, roots, sequences, entry = {}, {}, {}, 0
    for field, value in _fields(data):
        if field == _MODULE_ENTRY_ID:
            entry = value
        elif field == _MODULE_COMPUTATIONS:
            bodies = []
            computation = root = 0
            for inner, inner_value in _fields(value):
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
            for inner, inner_value in _fields(value):
                if inner == _SCHEDULE_SEQUENCES:
                    item = dict(_fields(inner_value))
                    sequences[item.get(_MAP_KEY, 0)] = item.get(_MAP_VALUE, b"")
    schedule = [
        number
        for field, value in _fields(sequences.get(entry, b""))
        if field == _SEQUENCE_INSTRUCTIONS
        for number in _integers(value)
    ]
    return StoredModule(instructions, roots, entry, tuple(schedule), buffers)


def _read_instruction(data: bytes, computation: int) -> tuple[int, Instruction]:
    name = opcode = op_name = ""
    number = 0
    operands: list[int] = []
    called: list[int] = []
    for field, value in _fields(data):
        if field == _INSTRUCTION_NAME:
            name = value.decode()
        elif field == _INSTRUCTION_OPCODE:
            opcode = value.decode()
        elif field == _INSTRUCTION_ID:
            number = value
        elif field == _INSTRUCTION_OPERANDS:
            operands += _integers(value)
        elif field == _INSTRUCTION_CALLED:
            called += _integers(value)
        elif field == _INSTRUCTION_METADATA:
            for inner, inner_value in _fields(value):
                if inner == _METADATA_OP_NAME:
                    op_name = inner_value.decode()
    return number, Instruction(
        name, opcode, op_name, computation, tuple(operands), tuple(called)
    )


def _read_buffers(data: bytes) -> Iterator[StoredBuffer]:
    defined: dict[int, tuple[int, tuple[int, ...]]] = {}
    allocations = []
    for field, value in _fields(data):
        if field == _ASSIGNMENT_ALLOCATIONS:
            allocations.append(value)
        elif field == _ASSIGNMENT_BUFFERS:
            number, instruction, index = 0, 0, ()
            for inner, inner_value in _fields(value):
                if inner == _BUFFER_ID:
                    number = inner_value
                elif inner == _BUFFER_DEFINED_AT:
                    for place, place_value in _fields(inner_value):
                        if place == _LOCATION_INSTRUCTION_ID:
                            instruction = place_value
                        elif place == _LOCATION_SHAPE_INDEX:
                            index += tuple(_integers(place_value))
            defined[number] = instruction, index
    for allocation in allocations:
        kind = "temp"
        assigned = []
        for field, value in _fields(allocation):
            if field == _ALLOCATION_ASSIGNED:
                assigned.append(dict(_fields(value)))
            elif value and field in (
                _ALLOCATION_IS_THREAD_LOCAL,
                _ALLOCATION_IS_TUPLE,
                _ALLOCATION_IS_CONSTANT,
            ):
                kind = "other"
            elif value and field == _ALLOCATION_IS_PARAMETER:
                kind = "argument"
            elif value and field == _ALLOCATION_IS_OUTPUT and kind == "temp":
                kind = "output"
        for place in assigned:
            instruction, index = defined[place.get(_ASSIGNED_BUFFER_ID, 0)]
            yield StoredBuffer(
                instruction=instruction,
                shape_index=index,
                size_bytes=place.get(_ASSIGNED_SIZE, 0),
                offset=place.get(_ASSIGNED_OFFSET, 0),
                kind=kind,
            )


def _integers(value: int | bytes) -> list[int]:
    """A repeated integer field: one number, or several packed into bytes."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
            value = data[at : at + length]
            at += length
        else:
            raise ValueError(f"protocol buffer wire type {wire} is not known")
        yield field, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
