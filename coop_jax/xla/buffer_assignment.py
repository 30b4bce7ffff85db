"""Buffer assignment: the values of a compiled program that XLA stores, and where.

XLA publishes, for every executable, the optimized module (`HloModuleProto`) and, unless
it compiled for an absent device, the buffer assignment (`BufferAssignmentProto`). The few
fields needed here are decoded by hand, so that no protobuf package is required. Compared
with reading the HLO text, this gives the exact buffers, sizes and addresses, and needs no
grammar. Where only the module is published, the buffers follow from its schedule
(`xla.buffers_from_schedule`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from coop_jax.base import _compat
from coop_jax.targets import HEAP_ALIGNMENT, heap_alignment_bytes
from coop_jax.xla import buffers_from_schedule, liveness
from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import HloModule, Instruction, read_module
from coop_jax.xla.protobuf_wire import fields, integers
from coop_jax.xla.shapes import Index, is_tuple_shape

_ASSIGNMENT_BUFFERS, _ASSIGNMENT_ALLOCATIONS = 1, 3
_BUFFER_ID, _BUFFER_SIZE, _BUFFER_DEFINED_AT = 1, 2, 3
_LOCATION_SHAPE_INDEX, _LOCATION_INSTRUCTION_ID = 3, 4
_ALLOCATION_SIZE, _ALLOCATION_IS_THREAD_LOCAL = 2, 3
_ALLOCATION_IS_PARAMETER, _ALLOCATION_IS_OUTPUT = 5, 7
_ALLOCATION_ASSIGNED, _ALLOCATION_IS_CONSTANT = 9, 12
_ASSIGNED_BUFFER_ID, _ASSIGNED_OFFSET, _ASSIGNED_SIZE = 1, 2, 3


@dataclasses.dataclass(frozen=True, slots=True)
class StoredModule:
    """The optimized module and its buffers.

    Attributes:
        instructions: by id, in the order of the module.
        roots: root instruction id by computation id.
        entry: id of the entry computation.
        schedule: instructions of the entry computation in execution order.
        buffers: all buffers that XLA lists.
        unlisted_bytes: bytes of XLA's temporaries beyond them.
    """

    instructions: dict[int, Instruction]
    roots: dict[int, int]
    entry: int
    schedule: tuple[int, ...]
    buffers: tuple[StoredBuffer, ...]
    unlisted_bytes: int = 0

    def users(self) -> defaultdict[int, list[int]]:
        """The instructions of the entry that read another's result, by that one's id, in
        execution order."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number in self.schedule:
            for operand in self.instructions[number].operands:
                found[operand].append(number)
        return found


def read_stored_module(compiled: Any) -> StoredModule | None:
    """The module and buffers of a `jax.stages.Compiled`.

    Returns `None` where the platform does not publish its module.
    """
    module = published_module(compiled)
    if module is None:
        return None
    schedule = module.sequences.get(module.entry, ())
    unlisted_bytes = 0
    buffers = assigned_buffers(compiled, module)
    if buffers:
        if any(b.instruction not in module.instructions for b in buffers):
            return None
    elif schedule:
        buffers = buffers_from_schedule.stored_buffers(module)
        analysis = compiled.memory_analysis()
        temp_bytes = analysis.temp_size_in_bytes if analysis is not None else 0
        heap_bytes = liveness.heap_bytes(module, alignment=_alignment(compiled))
        unlisted_bytes = max(0, temp_bytes - heap_bytes)
    else:
        return None
    return StoredModule(
        module.instructions, module.roots, module.entry, schedule, buffers, unlisted_bytes
    )


def published_module(compiled: Any) -> HloModule | None:
    """The optimized module; `None` where the platform does not publish it."""
    executable = compiled.runtime_executable()
    if not hasattr(executable, "hlo_modules"):
        return None
    [published] = executable.hlo_modules()
    return read_module(published.as_serialized_hlo_module_proto())


def assigned_buffers(compiled: Any, module: HloModule) -> tuple[StoredBuffer, ...]:
    """The buffers of XLA's assignment; none where it is not published."""
    tables = {
        number for number, i in module.instructions.items() if is_tuple_shape(i.shape)
    }
    return tuple(
        dataclasses.replace(buffer, kind="other")
        if buffer.shape_index == () and buffer.instruction in tables
        else buffer
        for buffer in _read_buffers(_assignment(compiled))
    )


def temporary_addresses(compiled: Any, module: HloModule) -> dict[tuple[int, Index], int]:
    """Addresses of temporaries, by (instruction, shape index), where XLA publishes them."""
    return {
        (buffer.instruction, buffer.shape_index): buffer.offset
        for buffer in assigned_buffers(compiled, module)
        if buffer.kind == "temp"
    }


def has_assignment(compiled: Any) -> bool:
    """Whether the platform publishes the buffer assignment of this executable."""
    return bool(_assignment(compiled))


def _assignment(compiled: Any) -> bytes:
    analysis = compiled.memory_analysis()
    return getattr(analysis, "serialized_buffer_assignment_proto", b"")


def _alignment(compiled: Any) -> int:
    shardings = _compat.input_shardings(compiled)
    devices = [device for s in shardings for device in s.device_set]
    return heap_alignment_bytes(devices[0]) if devices else HEAP_ALIGNMENT


def _read_buffers(data: bytes) -> Iterator[StoredBuffer]:
    """The buffers of temporaries in a serialized buffer assignment."""
    defined: dict[int, tuple[int, tuple[int, ...]]] = {}
    allocations = []
    for field, value in fields(data):
        if field == _ASSIGNMENT_ALLOCATIONS:
            allocations.append(value)
        elif field == _ASSIGNMENT_BUFFERS:
            number, instruction, index = 0, 0, ()
            for inner, inner_value in fields(value):
                if inner == _BUFFER_ID:
                    number = inner_value
                elif inner == _BUFFER_DEFINED_AT:
                    for place, place_value in fields(inner_value):
                        if place == _LOCATION_INSTRUCTION_ID:
                            instruction = place_value
                        elif place == _LOCATION_SHAPE_INDEX:
                            index += tuple(integers(place_value))
            defined[number] = instruction, index
    for allocation in allocations:
        kind = "temp"
        assigned = []
        for field, value in fields(allocation):
            if field == _ALLOCATION_ASSIGNED:
                assigned.append(dict(fields(value)))
            elif value and field in (
                _ALLOCATION_IS_THREAD_LOCAL,
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
