"""Resharded copies: a value that a mesh divides, gathered or divided otherwise for readers.

XLA computes a value as it is divided over the devices, and where an equation wants it
whole, or divided along another axis, gathers it into a buffer of its own, which may be as
many times as large as there are devices. Without fences one such copy lasts for all that
read it. Behind a fence is the value as it is divided, and each reader gathers it again: the
copies are scratch of the equations that read them, and the value takes its shard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import Instruction

if TYPE_CHECKING:
    from coop_jax.xla.buffer_assignment import StoredModule

_RESHARDS = ("all-gather", "all-to-all", "collective-permute")
# What XLA makes of a gathered value before it is read: its parts in another order.
_REARRANGES = frozenset("bitcast copy fusion get-tuple-element reshape transpose".split())

EquationOf = Callable[[Instruction], int | None]


def resharding_instructions(
    module: StoredModule, equation_of: EquationOf
) -> frozenset[int]:
    """Ids of the instructions of the entry that move an equation's value to other devices,
    or rearrange what was moved, under the name of that equation."""
    moved: set[int] = set()
    for number in module.schedule:
        instruction = module.instructions[number]
        if instruction.opcode.startswith(_RESHARDS):
            moved.add(number)
            continue
        if instruction.opcode not in _REARRANGES or not instruction.operands:
            continue
        if all(
            operand in moved
            and equation_of(module.instructions[operand]) == equation_of(instruction)
            for operand in instruction.operands
        ):
            moved.add(number)
    return frozenset(moved)


def scratch_of_readers(
    module: StoredModule,
    copies: Iterable[StoredBuffer],
    moved: frozenset[int],
    equation_of: EquationOf,
) -> dict[int, int]:
    """Bytes of copies that an equation reads, by its number: those that one copy is made
    from included, as both exist while it is made.

    Arguments:
        copies: buffers of `resharding_instructions`.
        moved: these instructions.
        equation_of: the equation whose name an instruction carries.
    """
    users: dict[int, list[int]] = defaultdict(list)
    for number in module.schedule:
        for operand in module.instructions[number].operands:
            users[operand].append(number)
    scratch: dict[int, int] = defaultdict(int)
    for buffer in copies:
        for equation in _readers(module, users, buffer.instruction, moved, equation_of):
            scratch[equation] += buffer.size_bytes
    return dict(scratch)


def _readers(
    module: StoredModule,
    users: dict[int, list[int]],
    start: int,
    moved: frozenset[int],
    equation_of: EquationOf,
) -> set[int]:
    """The equations that read an instruction's result, or what was rearranged of it."""
    found: set[int] = set()
    seen: set[int] = set()
    todo = [start]
    while todo:
        at = todo.pop()
        for user in users[at]:
            if user in seen:
                continue
            seen.add(user)
            equation = equation_of(module.instructions[user])
            if user in moved or equation is None:
                todo.append(user)
            else:
                found.add(equation)
    return found
