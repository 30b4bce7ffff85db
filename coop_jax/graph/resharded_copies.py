"""Resharded copies: a value that a mesh divides, gathered or divided otherwise for readers.

XLA computes a value as it is divided over the devices, and where an equation wants it
whole, or divided along another axis, gathers it into a buffer of its own, which may be as
many times as large as there are devices. Without fences one such copy lasts for all that
read it. Behind a fence is the value as it is divided, and each reader gathers it again: the
copies are scratch of the equations that read them, and the value takes its shard.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import Instruction

if TYPE_CHECKING:
    from coop_jax.xla.buffer_assignment import StoredModule

_RESHARDS = ("all-gather", "all-to-all", "collective-permute")
# What XLA makes of a gathered value before it is read: its parts in another order.
_REARRANGES = frozenset("bitcast copy fusion get-tuple-element reshape transpose".split())

EquationOf = Callable[[Instruction], int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ReshardedCopy:
    """A value as other equations than its own need it on a device.

    Attributes:
        size_bytes: of its buffer.
        made_by: the equation whose value it is a copy of; -1 for an argument.
        readers: the equations that read it.
        is_passed_on: whether another copy alone is made of it, so that it ends there.
    """

    size_bytes: int
    made_by: int
    readers: frozenset[int]
    is_passed_on: bool


def resharded_copies(
    module: StoredModule,
    copies: Iterable[StoredBuffer],
    moved: frozenset[int],
    equation_of: EquationOf,
) -> tuple[ReshardedCopy, ...]:
    """The copies that equations read; arguments as of `scratch_of_readers`."""
    users = module.users()
    found = []
    for buffer in copies:
        readers = _readers(module, users, buffer.instruction, moved, equation_of)
        made_by = equation_of(module.instructions[buffer.instruction])
        is_passed_on = moved.issuperset(_read_by(module, users, buffer.instruction))
        found.append(
            ReshardedCopy(
                buffer.size_bytes,
                -1 if made_by is None else made_by,
                frozenset(readers),
                is_passed_on,
            )
        )
    return tuple(copy for copy in found if copy.readers)


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
    users = module.users()
    scratch: dict[int, int] = defaultdict(int)
    for buffer in copies:
        for equation in _readers(module, users, buffer.instruction, moved, equation_of):
            scratch[equation] += buffer.size_bytes
    return dict(scratch)


def _read_by(
    module: StoredModule, users: dict[int, list[int]], start: int
) -> Iterator[int]:
    """The instructions that read a result, as it is or as another shape."""
    for user in users[start]:
        if module.instructions[user].opcode == "bitcast":
            yield from _read_by(module, users, user)
        else:
            yield user


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
