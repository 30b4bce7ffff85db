"""Unattributed buffers: stored for an equation, under no equation's name.

Passes that take an operation apart lose its name. XLA:GPU looks for the maxima of a
pooling's windows before it scatters the gradient to them, and stores their indices, once
per dimension; it transposes the weights of convolutions. Without fences it does so as soon
as it can, and these buffers last from the forward to the backward pass. Behind a fence it
cannot, and there they are scratch of the equation that reads them.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import Instruction

if TYPE_CHECKING:
    from coop_jax.xla.buffer_assignment import StoredModule

_FORWARDS = frozenset(("bitcast", "get-tuple-element", "tuple"))


@dataclasses.dataclass(frozen=True)
class Unnamed:
    """Buffers without a name, by the equations that read them.

    Attributes:
        scratch_bytes: bytes of them that an equation needs at once, by its number.
        reader: the equation that reads each buffer first; -1: none.
    """

    scratch_bytes: dict[int, int]
    reader: tuple[int, ...]


def readers_of_unnamed(
    module: StoredModule,
    buffers: Iterable[StoredBuffer],
    equation_of: Callable[[Instruction], int | None],
) -> Unnamed:
    """Find the equations that unnamed buffers of the entry computation are made for.

    Arguments:
        module: the optimized module of a tagged program.
        buffers: those that no equation could be found for.
        equation_of: gives the equation whose name an instruction carries, or None.
    """
    buffers = tuple(buffers)
    users = module.users()
    places = [tuple(readers_of(module, users, buffer)) for buffer in buffers]
    found: dict[int, int] = {}

    def owner(instruction: int) -> int:
        """The first equation named by an instruction, or by those that read it."""
        todo = [instruction]
        seen: set[int] = set()
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if at not in found:
                equation = equation_of(module.instructions[at])
                found[at] = -1 if equation is None else equation
            if found[at] >= 0:
                return found[at]
            todo += reversed(users[at])
        return -1

    reader = []
    for read_by in places:
        owners = (owner(instruction) for instruction in read_by)
        reader.append(next((number for number in owners if number >= 0), -1))
    # A buffer that nothing reads is alive as long as those of the same instruction.
    made_for = {b.instruction: r for b, r in zip(buffers, reader, strict=True) if r >= 0}
    reader = [
        made_for.get(b.instruction, -1) if r < 0 else r
        for b, r in zip(buffers, reader, strict=True)
    ]
    loads: dict[tuple[int, int], int] = defaultdict(int)
    for buffer, read_by, equation in zip(buffers, places, reader, strict=True):
        if equation >= 0:
            for instruction in {buffer.instruction, *read_by}:
                loads[equation, instruction] += buffer.size_bytes
    scratch: dict[int, int] = defaultdict(int)
    for (equation, _), load in loads.items():
        scratch[equation] = max(scratch[equation], load)
    return Unnamed(dict(scratch), tuple(reader))


def buffers_of_kept_constants(
    module: StoredModule, equation_of: Callable[[Instruction], int | None], late: int
) -> frozenset[int]:
    """Ids of unnamed instructions that need no argument, and serve late equations.

    No fence delays an instruction that needs no argument: XLA:CPU makes the indices of a
    pooling's gradient, and the zeros it is added to, at the beginning of the step. Without
    fences it also looks for the maxima as soon as it can, and then no longer needs the
    indices.

    Arguments:
        equation_of: the equation whose name an instruction carries.
        late: the first equation that is late enough for its constants to be kept for
            much of the step.
    """
    depends: set[int] = set()
    for number in module.schedule:
        instruction = module.instructions[number]
        if instruction.opcode == "parameter" or depends.intersection(instruction.operands):
            depends.add(number)
    free = set(module.schedule) - depends
    buffers = [
        b
        for b in module.buffers
        if b.kind == "temp"
        and b.instruction in free
        and equation_of(module.instructions[b.instruction]) is None
    ]
    reader = readers_of_unnamed(module, buffers, equation_of).reader
    return frozenset(
        b.instruction for b, r in zip(buffers, reader, strict=True) if r >= late
    )


def written_by_loops(module: StoredModule) -> frozenset[int]:
    """Ids of the instructions whose buffers loops of the entry computation write into: the
    zeros, and copies of these, that the stacked results of a `scan` begin with.

    They are no constants beside the loop's results, which are counted as such.
    """
    instructions = module.instructions
    written: set[int] = set()
    for loop in instructions.values():
        if loop.opcode != "while" or loop.computation != module.entry:
            continue
        initial = instructions[loop.operands[0]]
        roots = (instructions[module.roots[called]] for called in loop.called)
        body = next((root for root in roots if root.opcode == "tuple"), None)
        if initial.opcode != "tuple" or body is None:
            continue
        written.update(
            operand
            for index, operand in enumerate(initial.operands)
            if not _is_handed_on(instructions, body.operands[index], index)
        )
    return frozenset(written)


def _is_handed_on(instructions: Mapping[int, Instruction], number: int, index: int) -> bool:
    """Whether the result of a loop's body at an index is what it was given there."""
    result = instructions[number]
    if result.opcode != "get-tuple-element" or result.tuple_index != index:
        return False
    return instructions[result.operands[0]].opcode == "parameter"


def readers_of(
    module: StoredModule, users: dict[int, list[int]], buffer: StoredBuffer
) -> Iterator[int]:
    """The instructions that read a buffer, in XLA's order as far as it is direct."""
    todo = [(buffer.instruction, buffer.shape_index)]
    while todo:
        made_by, index = todo.pop(0)
        for number in users[made_by]:
            user = module.instructions[number]
            if user.opcode not in _FORWARDS:
                yield number
            elif user.opcode == "bitcast":
                todo.append((number, index))
            elif user.opcode == "get-tuple-element":
                if index[:1] == (user.tuple_index,):
                    todo.append((number, index[1:]))
            else:  # A tuple may hold it twice.
                positions = [i for i, o in enumerate(user.operands) if o == made_by]
                todo += [(number, (i, *index)) for i in positions]
