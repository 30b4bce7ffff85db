"""Buffers from schedule: the stored values, where XLA publishes no buffer assignment.

For an absent device, XLA publishes the optimized module with its schedule and with the
layout of every value, but not its buffer assignment. Nearly all of the assignment follows
from the module: every instruction of the schedule defines a buffer, except those that only
pass on the buffers of their operands; the layout gives the memory in which it lies and the
bytes of its tiles there. Only the addresses are lost.

A value that XLA keeps in VMEM takes no main memory and is yielded with no bytes: it is
stored, at no cost, as long as it is not kept for long.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from coop_jax.base.sweep import bytes_over_time
from coop_jax.xla.hlo_module import HloModule, Instruction, aliased
from coop_jax.xla.shapes import Index, leaves, sizes_of

# Their results are their operands' buffers.
_FORWARDS = frozenset("bitcast opt-barrier add-dependency domain async-update".split())
# They name buffers, and read none: XLA may put them anywhere behind what made these.
_NAMES = frozenset("tuple get-tuple-element".split())
# Of these the called computations run in memory of their own; a fusion's do not.
_RUNS_NESTED = frozenset("while conditional call".split())
_MOVES = frozenset("copy copy-start".split())
# The part of an asynchronous start's shape that holds its results: (operands, results,
# ...) in general, (result, operand, context) for a copy.
_RESULT_PART = {"copy": (0,)}


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBuffer:
    """A value that XLA keeps in memory.

    `kind` is the allocation it lies in: `"temp"`, `"output"` (an output that no argument
    shares), `"argument"` (arguments and the outputs that take them over) or `"other"`.
    `value_sizes` are the bytes that the value may have in the program, likeliest first,
    where they are not `size_bytes`: tiles are padded, and a value that only matrix
    products read is bfloat16-narrowed. `lifetime` is its live range in
    instructions, 0 if that is not known. `near_bytes` is the size of a value that lies in
    VMEM, and that it would have in main memory.
    """

    instruction: int
    shape_index: Index
    size_bytes: int
    offset: int
    kind: str
    value_sizes: tuple[int, ...] = ()
    lifetime: int = 0
    near_bytes: int = 0


@dataclasses.dataclass(slots=True)
class Value:
    """One buffer's content: its instruction, and the value whose memory it shares.

    `storage` is the first value that lies there; `bytes` 0 outside of main memory,
    `near_bytes` 0 inside.
    """

    instruction: int
    index: Index
    bytes: int
    near_bytes: int
    value_sizes: tuple[int, ...]
    storage: Value | None = None

    def root(self) -> Value:
        return self if self.storage is None else self.storage.root()


def stored_buffers(module: HloModule) -> tuple[StoredBuffer, ...]:
    """The buffers of a scheduled module, as its buffer assignment would list them.

    Without addresses: every `offset` is 0.
    """
    buffers = list(_entry_buffers(module, Flow(module, module.entry)))
    todo = _nested(module, module.entry)
    seen = set()
    while todo:
        computation = todo.pop()
        if computation not in seen:
            seen.add(computation)
            buffers += _nested_buffers(module, computation)
            todo += _nested(module, computation)
    return tuple(buffers)


def kinds_of_storage(module: HloModule, flow: Flow) -> dict[int, str]:
    """The kind of memory of every storage, by its `id`; temporaries are left out."""
    kinds: dict[int, str] = {}
    for index, value in flow.held[module.roots[module.entry]].items():
        is_aliased = index in module.aliased_outputs
        kinds[id(value.root())] = "argument" if is_aliased else "output"
    for value in flow.values:
        opcode = module.instructions[value.instruction].opcode
        if opcode in ("parameter", "constant"):
            kinds[id(value.root())] = "argument" if opcode == "parameter" else "other"
    return kinds


def _entry_buffers(module: HloModule, flow: Flow) -> Iterator[StoredBuffer]:
    """Buffers of the entry computation's own values."""
    kinds = kinds_of_storage(module, flow)
    when = {number: at for at, number in enumerate(flow.sequence)}
    for value in flow.values:
        origin = flow.origin(value)
        yield StoredBuffer(
            instruction=origin.instruction,
            shape_index=origin.index,
            size_bytes=value.bytes,
            offset=0,
            kind=kinds.get(id(value.root()), "temp"),
            value_sizes=origin.value_sizes,
            lifetime=flow.last_read[id(value)] - when[value.instruction],
            near_bytes=value.near_bytes,
        )


def bytes_together(
    buffers: Sequence[StoredBuffer], elsewhere: Sequence[StoredBuffer]
) -> int:
    """Bytes of memory that buffers of nested computations take.

    Those that XLA placed may share it; of those without addresses only such are listed that
    do not.

    Arguments:
        buffers: the buffers.
        elsewhere: buffers whose memory is counted elsewhere.
    """
    if not any(buffer.offset for buffer in buffers):
        return sum(buffer.size_bytes for buffer in buffers)
    return _covered([*buffers, *elsewhere]) - _covered(elsewhere)


def _covered(buffers: Sequence[StoredBuffer]) -> int:
    """Bytes of the addresses at which any of the buffers lies."""
    end = total = 0
    for buffer in sorted(buffers, key=lambda buffer: buffer.offset):
        until = buffer.offset + buffer.size_bytes
        total += max(0, until - max(end, buffer.offset))
        end = max(end, until)
    return total


def _nested_buffers(module: HloModule, computation: int) -> Iterator[StoredBuffer]:
    """The buffers of a loop's body or a branch that are alive at its peak, besides its
    operands and results."""
    flow = Flow(module, computation)
    passed = {id(v.root()) for v in flow.held[module.roots[computation]].values()}
    for value in flow.values:
        opcode = module.instructions[value.instruction].opcode
        if opcode in ("parameter", "constant"):
            passed.add(id(value.root()))
    when = {number: at for at, number in enumerate(flow.sequence)}
    spans: dict[int, list[Any]] = {}  # By storage: first, last, value.
    for value in flow.values:
        if value.bytes and id(value.root()) not in passed:
            first, last = when[value.instruction], flow.last_read[id(value)]
            span = spans.setdefault(id(value.root()), [first, last, value])
            span[0], span[1] = min(span[0], first), max(span[1], last)
    if not spans:
        return
    firsts, lasts, values = zip(*spans.values(), strict=True)
    size = np.array([value.bytes for value in values], np.int64)
    count = len(flow.sequence)
    peak = int(bytes_over_time(np.array(firsts), np.array(lasts), size, count).argmax())
    for begins, ends, value in zip(firsts, lasts, values, strict=True):
        if begins <= peak <= ends:
            yield StoredBuffer(
                value.instruction, value.index, value.bytes, 0, "temp", value.value_sizes
            )


class Flow:
    """Which buffers hold the results of every instruction of one computation.

    Attributes:
        sequence: the computation's instructions in execution order.
        values: all values defined, in execution order.
        held: by instruction and shape index, the value there.
        last_read: position in `sequence` of the last instruction that reads a value, by the
            value's `id`; for results, the length of `sequence`.

    `places` are addresses, by instruction and shape index, where XLA publishes them.
    """

    def __init__(
        self,
        module: HloModule,
        computation: int,
        places: Mapping[tuple[int, Index], Any] = MappingProxyType({}),
    ) -> None:
        self.sequence = _sequence(module, computation)
        self.values: list[Value] = []
        self.held: dict[int, dict[Index, Value]] = {}
        self._module, self._computation = module, computation
        for number in self.sequence:
            self.held[number] = self._results(number, module.instructions[number])
        self.last_read = self._last_reads()
        for number in self.sequence:
            self._share(number, module.instructions[number])
            if places:
                self._share_places(number, module.instructions[number], places)

    def origin(self, value: Value) -> Value:
        """The value that was computed, if XLA has only moved it since."""
        while True:
            instruction = self._module.instructions[value.instruction]
            if instruction.op_name or instruction.opcode not in _MOVES:
                return value
            source = self.held[instruction.operands[0]].get(())
            if source is None:
                return value
            if self._module.instructions[source.instruction].opcode in (
                "parameter",
                "constant",
            ):
                return value
            value = source

    def _results(self, number: int, instruction: Instruction) -> dict[Index, Value]:
        """The values of an instruction's results, by shape index."""
        opcode = instruction.opcode
        operands = [self.held[o] for o in instruction.operands]
        if opcode in _FORWARDS:
            return operands[0]
        if opcode == "tuple":
            return {
                (i, *index): value
                for i, operand in enumerate(operands)
                for index, value in operand.items()
            }
        if opcode == "get-tuple-element":
            return _element(operands[0], (instruction.tuple_index,))
        if opcode.endswith("-done"):
            if () in operands[0]:
                return operands[0]
            return _element(operands[0], _RESULT_PART.get(opcode[:-5], (1,)))
        is_started = opcode.endswith("-start")
        made = {}
        for index, shape in leaves(instruction.shape):
            if is_started and index and index[:1] != _RESULT_PART.get(opcode[:-6], (1,)):
                # Operands, which have to stay until the end of the move, and contexts.
                source = _passed(operands, index if opcode != "copy-start" else (0,))
                if source is not None and index != (2,):
                    made[index] = source
                continue
            value = Value(number, index, *sizes_of(shape))
            self.values.append(value)
            made[index] = value
        return made

    def _last_reads(self) -> dict[int, int]:
        """The last instruction that reads every value, by its number."""
        last: dict[int, int] = {}
        for at, number in enumerate(self.sequence):
            instruction = self._module.instructions[number]
            operands = () if instruction.opcode in _NAMES else instruction.operands
            for operand in operands:
                for value in self.held[operand].values():
                    last[id(value)] = at
            for value in self.held[number].values():
                last.setdefault(id(value), at)
        for value in self.held[self._module.roots[self._computation]].values():
            last[id(value)] = len(self.sequence)
        return last

    def _share(self, number: int, instruction: Instruction) -> None:
        """Let results share their operand's storage: by opcode, or where XLA noted it."""
        results = self.held[number]
        for index, operand, operand_index in _shared(instruction, results):
            if operand >= len(instruction.operands):
                continue
            result = results.get(index)
            source = self.held[instruction.operands[operand]].get(operand_index)
            if result is None or source is None or result.instruction != number:
                continue
            if result.bytes == source.bytes and result.root() is not source.root():
                result.storage = source.root()

    def _share_places(
        self,
        number: int,
        instruction: Instruction,
        places: Mapping[tuple[int, Index], Any],
    ) -> None:
        """Let results share the storage of an operand with their size and their address."""
        sources = {
            (places.get((value.instruction, value.index)), value.bytes): value
            for operand in instruction.operands
            for value in self.held[operand].values()
        }
        for result in self.held[number].values():
            place = places.get((result.instruction, result.index))
            source = sources.get((place, result.bytes))
            if place is None or source is None or result.instruction != number:
                continue
            if result.root() is not source.root():
                result.storage = source.root()


def _shared(
    instruction: Instruction, results: dict[Index, Value]
) -> Iterator[tuple[Index, int, Index]]:
    """(shape index of a result, operand, shape index in it) that share their memory."""
    if instruction.opcode == "while":
        yield from ((index, 0, index) for index in results)
    if instruction.opcode in ("dynamic-update-slice", "scatter"):
        yield (), 0, ()
    yield from aliased(instruction)
    # XLA:TPU numbers operands, then results: [["0", "6"]] puts result 0 of a fusion with
    # six operands where its first operand was.
    if b'"aliasing_operands"' in instruction.backend_config:
        lists = json.loads(instruction.backend_config)["aliasing_operands"]["lists"]
        count = len(instruction.operands)
        for group in lists:
            numbers = [int(n) for n in group["indices"]]
            sources = [n for n in numbers if n < count]
            for n in numbers:
                if n >= count and sources:
                    yield (() if () in results else (n - count,)), sources[0], ()


def _nested(module: HloModule, computation: int) -> list[int]:
    """Ids of the computations that a computation's instructions run as programs."""
    return [
        called
        for number in _sequence(module, computation)
        if module.instructions[number].opcode in _RUNS_NESTED
        for called in module.instructions[number].called
    ]


def _sequence(module: HloModule, computation: int) -> tuple[int, ...]:
    """Instruction ids in execution order.

    Computations without a schedule are listed in such an order.
    """
    scheduled = module.sequences.get(computation)
    if scheduled:
        return scheduled
    return tuple(n for n, i in module.instructions.items() if i.computation == computation)


def _passed(operands: list[dict[Index, Value]], index: Index) -> Value | None:
    """The operand at (0, i, ...) of an asynchronous start."""
    position = index[1:2]
    if index[:1] != (0,) or sum(position) >= len(operands):
        return None
    return operands[sum(position)].get(index[2:])


def _element(held: dict[Index, Value], prefix: Index) -> dict[Index, Value]:
    length = len(prefix)
    return {i[length:]: value for i, value in held.items() if i[:length] == prefix}
