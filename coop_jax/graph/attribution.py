"""Attribution: the buffers of a compiled step to the values and equations they belong to.

The tagged program carries the number of every equation as a name scope. So the names of
their instructions give the equations that XLA's buffers belong to. A buffer is the value of
an equation, its scratch, or of no equation at all; a buffer of no equation that lasts for
much of the step is counted separately.
"""

from __future__ import annotations

import functools
import operator
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from coop_jax.graph.buffer_to_value import stored_value
from coop_jax.graph.resharded_copies import (
    ReshardedCopy,
    resharded_copies,
    resharding_instructions,
    scratch_of_readers,
)
from coop_jax.graph.scatter_add import accumulations
from coop_jax.graph.stored_values import SCOPE, InPlace, StoredValues
from coop_jax.graph.unattributed_buffers import (
    buffers_of_kept_constants,
    readers_of,
    readers_of_unnamed,
    written_by_loops,
)
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import Program, consumers_of, writes
from coop_jax.trace.replacements import replacement_of
from coop_jax.xla.buffer_assignment import StoredModule
from coop_jax.xla.buffers_from_schedule import StoredBuffer, bytes_together
from coop_jax.xla.hlo_module import Instruction

_LIFETIME = operator.attrgetter("lifetime")
# A buffer of no equation counts as lasting if it is kept for more than the schedule's
# length over this number.
_LASTING = 4
# Their results are the buffers of their operands.
_PASSES_ON = frozenset("tuple bitcast get-tuple-element".split())
_SCOPE_PATTERN = re.compile(rf"(?:^|/){SCOPE}(\d+)(?:/|$)")


class Attribution:
    """The buffers of a module, attributed.

    Arguments:
        program: the program before it was tagged.
        module: the compiled module of the tagged program.
        num_partitions: devices that the program is partitioned over.
        keeps_constants: arrays that depend on no argument are kept from the beginning of
            the step, whatever fences it has, as XLA:CPU does.
        has_other_forms: a value may lie in a buffer of more bytes than it has, as those of
            convolutions by XLA:TPU.

    Attributes:
        consumers: the equations that read a value, by variable.
        kept: the buffer of every stored value; of several the one that is kept longest.
        value_sizes: `StoredBuffer.value_sizes` of all buffers of a value, by variable.
    """

    def __init__(
        self,
        program: Program,
        module: StoredModule,
        num_partitions: int = 1,
        *,
        keeps_constants: bool = False,
        has_other_forms: bool = False,
    ) -> None:
        self.program = program
        self.module = module
        self.num_partitions = num_partitions
        self.consumers = consumers_of(program)
        self.kept: dict[Any, StoredBuffer] = {}
        self.value_sizes: dict[Any, list[tuple[int, ...]]] = defaultdict(list)
        self._inside = _instructions_by_computation(module)
        self._when = {number: at for at, number in enumerate(module.schedule)}
        self._sums = accumulations(program)
        self._replaced = {
            eqn.outvars[0]: index
            for index, eqn in enumerate(program.eqns)
            if replacement_of(eqn) is not None
        }
        self._filled = {
            aval_bytes(eqn.outvars[0].aval): index
            for index, eqn in enumerate(program.eqns)
            if fills_an_array(eqn)
        }
        self._stored: dict[Any, int] = {}
        self._workspace: dict[int, int] = defaultdict(int)
        self._position: dict[Any, int] = {}
        self._started: dict[int, int] = {}  # By equation: its first result of another size.
        self._early: dict[int, int] = defaultdict(int)
        self._nested: dict[int, list[StoredBuffer]] = defaultdict(list)  # By computation.
        self._unnamed: list[StoredBuffer] = []
        self._written_by_loops = (
            written_by_loops(module) if keeps_constants else frozenset()
        )
        self._moved = (
            resharding_instructions(module, equation_of)
            if num_partitions > 1
            else frozenset()
        )
        self._copies: list[tuple[Any, StoredBuffer]] = []
        self._unmapped = self._lasting = self._kept_constants = 0
        self._has_other_forms = has_other_forms
        late = len(program.eqns) // _LASTING
        kept = (
            buffers_of_kept_constants(module, equation_of, late)
            if keeps_constants
            else frozenset()
        )
        for buffer in module.buffers:
            self._attribute(buffer, kept)
        self._attribute_copies()
        for index in self._replaced.values():
            eqn = program.eqns[index]
            replacement = replacement_of(eqn)
            assert replacement is not None
            self._workspace[index] = replacement.scratch_bytes(eqn)
        self._attribute_to_readers()
        self._start_reductions()
        self._add_nested()

    def stored_values(self, in_place: InPlace = "elementwise") -> StoredValues:
        """The values that XLA stores, by the rules that all backends share."""
        return StoredValues(
            self._stored,
            dict(self._workspace),
            self._position,
            self._unmapped,
            "compiled",
            self.num_partitions,
            in_place,
            unlisted_bytes=self.module.unlisted_bytes + self._lasting,
            early_bytes=dict(self._early),
            kept_constant_bytes=self._kept_constants,
        )

    def resharded_copies(self) -> tuple[ReshardedCopy, ...]:
        """The copies of values and arguments that count as scratch of their readers."""
        unnamed = (b for b in self._unnamed if b.instruction in self._moved)
        copies = [*self._resharded, *unnamed]
        return resharded_copies(self.module, copies, self._moved, equation_of)

    def fused_equations(self) -> list[set[int]]:
        """The equations inside of every fusion."""
        return [
            self._equations_inside(fusion.called)
            for fusion in self._inside[self.module.entry]
            if fusion.opcode == "fusion"
        ]

    def _attribute(self, buffer: StoredBuffer, kept: frozenset[int]) -> None:
        """Attribute one buffer to a value, to the workspace of an equation, or to none."""
        instruction = self.module.instructions[buffer.instruction]
        if buffer.kind == "other" or instruction.opcode == "parameter":
            return
        if instruction.computation != self.module.entry:
            self._nested[instruction.computation].append(buffer)
            return
        if buffer.instruction in kept:
            if buffer.instruction not in self._written_by_loops:
                self._kept_constants += buffer.size_bytes
            return
        named, fused, is_constant = self._equations_at(buffer)
        value = stored_value(
            self.program, self.consumers, buffer, named, fused, self.num_partitions
        )
        while value in self._sums:
            value = self._sums[value][0]
        at = self._when.get(buffer.instruction)
        if value is not None and at is not None:
            # The indices of a pooling's gradient have its size, and are made before it.
            first = max if value in self._replaced else min
            self._position[value] = first(self._position.get(value, at), at)
        if buffer.kind == "argument":
            return  # A result in the memory of an argument: none of its own.
        if value is not None and buffer.instruction in self._moved:
            self._copies.append((value, buffer))
        elif value is not None:
            self._store(value, buffer)
        elif named and (other_form := self._in_another_form(named[0], buffer)) is not None:
            self._store(other_form, buffer)
        elif named:
            self._workspace[named[0]] = max(self._workspace[named[0]], buffer.size_bytes)
            if at is not None:
                self._started[named[0]] = min(self._started.get(named[0], at), at)
        elif is_constant:
            self._attribute_constant(buffer)
        else:
            self._unnamed.append(buffer)

    def _store(self, value: Any, buffer: StoredBuffer) -> None:
        size_bytes = max(buffer.size_bytes, buffer.near_bytes)
        self._stored[value] = max(self._stored.get(value, 0), size_bytes)
        self.kept[value] = max(self.kept.get(value, buffer), buffer, key=_LIFETIME)
        self.value_sizes[value].append(buffer.value_sizes)

    @functools.cached_property
    def _users(self) -> dict[int, list[int]]:
        return self.module.users()

    def _in_another_form(self, equation: int, buffer: StoredBuffer) -> Any | None:
        """The value that a buffer of another size holds; None if it is scratch, which no
        other equation reads, nor any much later."""
        if not self._has_other_forms or equation >= len(self.program.eqns):
            return None
        made = writes(self.program.eqns[equation])
        if len(made) != 1 or buffer.size_bytes < aval_bytes(made[0].aval):
            return None
        readers = readers_of(self.module, self._users, buffer)
        named = (equation_of(self.module.instructions[number]) for number in readers)
        is_read_elsewhere = any(reader not in (None, equation) for reader in named)
        return made[0] if is_read_elsewhere or self._is_lasting(buffer) else None

    def _attribute_copies(self) -> None:
        """Count resharded copies as scratch of their readers; as the value itself where it
        has no other buffer."""
        copies = [buffer for value, buffer in self._copies if value in self._stored]
        self._resharded = copies
        for value, buffer in self._copies:
            if buffer not in copies:
                self._store(value, buffer)
        scratch = scratch_of_readers(self.module, copies, self._moved, equation_of)
        for index, size_bytes in scratch.items():
            self._workspace[index] += size_bytes

    def _is_lasting(self, buffer: StoredBuffer) -> bool:
        return buffer.lifetime > len(self.module.schedule) // _LASTING

    def _attribute_constant(self, buffer: StoredBuffer) -> None:
        """A buffer that belongs to no equation and holds a constant."""
        self._unmapped += buffer.size_bytes
        if not self._is_lasting(buffer):
            return
        # Fences separate the zeros of several equations: `backends.gpu.shared_zeros`.
        if buffer.size_bytes in self._filled:
            self._early[self._filled[buffer.size_bytes]] += buffer.size_bytes
        else:
            self._lasting += buffer.size_bytes

    def _attribute_to_readers(self) -> None:
        """Count buffers without a name as scratch of the equations that read them."""
        unnamed = readers_of_unnamed(self.module, self._unnamed, equation_of)
        for index, scratch in unnamed.scratch_bytes.items():
            self._workspace[index] += scratch
        for buffer, reader in zip(self._unnamed, unnamed.reader, strict=True):
            is_lasting = self._is_lasting(buffer)
            if reader < 0:
                self._unmapped += buffer.size_bytes
                self._lasting += buffer.size_bytes * is_lasting
            elif is_lasting:
                self._early[reader] += buffer.size_bytes

    def _start_reductions(self) -> None:
        """Date the values of reductions by their first step.

        XLA:GPU reduces in two steps. The first reads the operand as soon as it exists;
        the second makes the value, much later.
        """
        for index, at in self._started.items():
            eqn = self.program.eqns[index] if index < len(self.program.eqns) else None
            if eqn is not None and eqn.primitive.name.startswith("reduce_"):
                for v in writes(eqn):
                    if v in self._position:
                        self._position[v] = min(self._position[v], at)

    def _add_nested(self) -> None:
        """Count bodies of loops and branches as scratch of the equation that runs them."""
        for number, instruction in self.module.instructions.items():
            if instruction.computation != self.module.entry:
                continue
            called = self._closure(instruction.called)
            nested = [b for c in called for b in self._nested[c]]
            scratch = bytes_together(nested, self._handed_to(number))
            equation = equation_of(instruction)
            if scratch and equation is not None:
                self._workspace[equation] += scratch

    def _handed_to(self, number: int) -> list[StoredBuffer]:
        """The buffers of the entry that a loop or a branch is given, and its results: its
        body writes into them in place."""
        known: set[int] = set()
        todo = [number, *self.module.instructions[number].operands]
        while todo:
            given = todo.pop()
            if given not in known:
                known.add(given)
                if self.module.instructions[given].opcode in _PASSES_ON:
                    todo += self.module.instructions[given].operands
        return [
            b for b in self.module.buffers if b.kind == "temp" and b.instruction in known
        ]

    def _equations_at(self, buffer: StoredBuffer) -> tuple[list[int], set[int], bool]:
        """The equations that a buffer's instruction names, those inside, and a flag.

        The named ones are ordered, the likeliest first. The flag is True for the buffer of
        a constant, which is of no equation.
        """
        instruction = self.module.instructions[buffer.instruction]
        names = [instruction]
        if instruction.called:
            root = self._result(instruction.called[0], buffer.shape_index)
            if root is not None:
                names.insert(0 if buffer.shape_index else 1, root)
        if names[0].opcode == "broadcast" and not names[0].op_name:
            return [], set(), True
        named = [i for i in map(equation_of, names) if i is not None]
        return named, self._equations_inside(instruction.called), False

    def _equations_inside(self, called: Iterable[int]) -> set[int]:
        """Indices of the equations whose names instructions of a computation carry."""
        return {
            equation
            for computation in self._closure(called)
            for instruction in self._inside[computation]
            if (equation := equation_of(instruction)) is not None
        }

    def _closure(self, called: Iterable[int]) -> list[int]:
        """Ids of all computations reached from `called`."""
        reached: dict[int, None] = {}
        todo = list(called)
        while todo:
            computation = todo.pop()
            if computation in reached:
                continue
            reached[computation] = None
            for instruction in self._inside[computation]:
                todo += instruction.called
        return list(reached)

    def _result(self, computation: int, shape_index: tuple[int, ...]) -> Instruction | None:
        """The instruction that computes one result of a computation."""
        instructions = self.module.instructions
        root = instructions.get(self.module.roots.get(computation, -1))
        for index in shape_index:
            if root is None or root.opcode != "tuple":
                return None
            root = instructions.get(root.operands[index])
        return root


def equation_of(instruction: Instruction) -> int | None:
    """The number of the equation whose scope an instruction carries, or None."""
    found = _SCOPE_PATTERN.search(instruction.op_name)
    return int(found.group(1)) if found else None


def fills_an_array(eqn: Any) -> bool:
    """Whether XLA:GPU scatters the equation's result into an array of zeros."""
    return eqn.primitive.name == "select_and_scatter_add"


def _instructions_by_computation(module: StoredModule) -> dict[int, list[Instruction]]:
    inside: dict[int, list[Instruction]] = defaultdict(list)
    for instruction in module.instructions.values():
        inside[instruction.computation].append(instruction)
    return inside
