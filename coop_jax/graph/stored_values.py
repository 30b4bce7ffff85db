"""Stored values: which values of the program XLA really stores.

Elementwise chains never reach memory, and what does differs between CPU, GPU and TPU.
So the compiler is asked: the unmodified program is compiled once with every equation
under a name scope that carries its number, and XLA's buffer assignment then says what
is stored, how large it is, and, by the scope, which equation it belongs to. Rules alone
were off by up to a factor of two (see CHANGELOG); they remain for tracing under an outer
`jit`, where nothing can be compiled.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from coop_jax.backends.cpu.pool_gradient import pool_gradient_p, scratch_bytes
from coop_jax.backends.gpu.shared_zeros import fills_an_array
from coop_jax.backends.tpu.async_copies import unlisted_of_plans
from coop_jax.backends.tpu.bf16_storage import Rounded, is_rounded, read_rounded
from coop_jax.backends.tpu.layouts import KEPT_AT_FENCES, Order, layouts_of
from coop_jax.base import _compat
from coop_jax.graph.buffer_to_value import consumers_of, stored_value
from coop_jax.graph.scatter_add import accumulations
from coop_jax.graph.unattributed_buffers import readers_of_unnamed, standing_buffers
from coop_jax.trace.costs import aval_bytes, is_fusible
from coop_jax.trace.program import Program, writes
from coop_jax.xla.buffer_assignment import StoredModule, read_stored_module
from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import Instruction

_SCOPE = "eqn"
_LIFETIME = operator.attrgetter("lifetime")
# A buffer of no equation that is kept for this part of the schedule is taken for lasting.
_LASTING = 4
_SCOPE_PATTERN = re.compile(rf"(?:^|/){_SCOPE}(\d+)(?:/|$)")

InPlace = Literal["elementwise", "scatters", "fusions"]
_IN_PLACE: dict[str, InPlace] = {"gpu": "scatters", "cuda": "scatters", "tpu": "fusions"}


@dataclasses.dataclass(frozen=True)
class Materialization:
    """What XLA stores of a program.

    Attributes:
        stored_bytes: bytes of every stored value, by variable.
        workspace_bytes: scratch that the operation of an equation needs while it runs
            (loop bodies, buffers that are no value of the program), by equation index.
        position: when XLA makes a value, in its own schedule, by variable.
        unmapped_bytes: total of the buffers that could not be given to any equation.
        source: `"compiled"` or `"rules"`.
        num_partitions: devices that the program is partitioned over.
        in_place: which operations may write over an operand. XLA:CPU: those that are
            elementwise and nothing else (with more, plans of a conv net missed by 7 MiB
            of 46 rather than by 2). XLA:GPU: none, except scatters.
            XLA:TPU: fusions, over what they read element by element.
        unlisted_bytes: what XLA's temporaries take beyond the buffers of equations: what
            it does not list, and what lasts for much of the step but belongs to no
            equation (XLA:GPU stores the zeros of a `relu`).
        more_unlisted_of_plans: what plans are expected to need beyond that, or less if
            negative (`backends.tpu.async_copies`).
        early_bytes: what XLA makes for an equation long before it runs, where there is no
            fence in between, by equation index.
        standing_bytes: arrays of constants that XLA keeps for much of the step, fences or
            not (`unattributed_buffers.standing_buffers`).
        layouts: those that XLA chose, where fences keep them, by variable
            (`backends.tpu.layouts`).
        rounded: values that XLA:TPU keeps in half precision (`backends.tpu.bf16_storage`).
    """

    stored_bytes: dict[Any, int]
    workspace_bytes: dict[int, int]
    position: dict[Any, int]
    unmapped_bytes: int
    source: str
    num_partitions: int = 1
    in_place: InPlace = "elementwise"
    unlisted_bytes: int = 0
    more_unlisted_of_plans: int = 0
    early_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    standing_bytes: int = 0
    layouts: dict[Any, Order] = dataclasses.field(default_factory=dict)
    rounded: Rounded = dataclasses.field(default_factory=dict)

    def bytes_of(self, var: Any) -> int:
        """Bytes of a value on one device: XLA's, or those of its type.

        A value that XLA did not store is taken to be partitioned over all devices, as
        activations are.
        """
        stored = self.stored_bytes.get(var)
        return aval_bytes(var.aval) // self.num_partitions if stored is None else stored

    @property
    def fuses_most(self) -> bool:
        """XLA:TPU makes the random bits of a dropout, and the scatter of a cross-entropy's
        gradient, which it turns into a comparison, in every fusion that reads them."""
        return self.source == "compiled" and self.in_place == "fusions"

    def with_scratch(self, scratch_bytes: Mapping[int, int]) -> Materialization:
        """The same with at least so much scratch, by equation index."""
        workspace = dict(self.workspace_bytes)
        for index, size in scratch_bytes.items():
            workspace[index] = max(workspace.get(index, 0), size)
        return dataclasses.replace(self, workspace_bytes=workspace)

    def with_twice(self, values: Iterable[Any]) -> Materialization:
        """The same with twice the bytes for some values."""
        twice = {v: 2 * self.bytes_of(v) for v in values}
        return dataclasses.replace(self, stored_bytes=self.stored_bytes | twice)

    def without_early(self) -> Materialization:
        """The same, but for the scratch that is made early."""
        workspace = {
            index: max(0, size - self.early_bytes.get(index, 0))
            for index, size in self.workspace_bytes.items()
        }
        return dataclasses.replace(self, workspace_bytes=workspace, early_bytes={})


def tag(program: Program) -> Program:
    """The program with the index of every equation as a name scope around it."""
    eqns = tuple(
        _compat.with_name_scope(eqn, f"{_SCOPE}{i}") for i, eqn in enumerate(program.eqns)
    )
    return dataclasses.replace(program, eqns=eqns)


def of_compiled(program: Program, compiled: Any) -> Materialization:
    """The materialisation of a program whose tagged form was compiled.

    By rules where the platform doesn't publish its optimized module.
    """
    module = read_stored_module(compiled)
    if module is None:
        return from_rules(program)
    shardings = _compat.input_shardings(compiled)
    num_partitions = max((len(s.device_set) for s in shardings), default=1)
    platforms = {d.platform for s in shardings for d in s.device_set}
    found = from_compiled(program, module, num_partitions, on_cpu=platforms == {"cpu"})
    if "tpu" not in platforms:  # Half of a value's bytes are those of another one there.
        found = dataclasses.replace(found, rounded={}, more_unlisted_of_plans=0)
    if platforms.isdisjoint(KEPT_AT_FENCES):
        found = dataclasses.replace(found, layouts={})
    for platform, in_place in _IN_PLACE.items():
        if platform in platforms:
            return dataclasses.replace(found, in_place=in_place)
    return found


def from_compiled(
    program: Program, module: StoredModule, num_partitions: int = 1, *, on_cpu: bool = False
) -> Materialization:
    """Read the materialisation of a tagged program off its compiled module."""
    inside = _instructions_by_computation(module)
    stored: dict[Any, int] = {}
    kept: dict[Any, StoredBuffer] = {}  # Of several, the one that is kept longest.
    rounded: dict[Any, bool] = {}
    workspace: dict[int, int] = defaultdict(int)
    consumers = consumers_of(program)
    sums = accumulations(program)
    when = {number: at for at, number in enumerate(module.schedule)}
    position: dict[Any, int] = {}
    started: dict[int, int] = {}  # By equation: its first result of another size.
    fills = {
        aval_bytes(eqn.outvars[0].aval): index
        for index, eqn in enumerate(program.eqns)
        if fills_an_array(eqn)
    }
    pool_gradients = {
        eqn.outvars[0]: index
        for index, eqn in enumerate(program.eqns)
        if eqn.primitive is pool_gradient_p
    }
    early: dict[int, int] = defaultdict(int)
    unnamed: list[StoredBuffer] = []
    lasts = len(module.schedule) // _LASTING
    unmapped, lasting, standing_bytes = 0, 0, 0
    late = len(program.eqns) // _LASTING
    standing = standing_buffers(module, _equation_of, late) if on_cpu else frozenset()
    nested: dict[int, int] = defaultdict(int)  # computation -> bytes of its buffers
    for buffer in module.buffers:
        instruction = module.instructions[buffer.instruction]
        if buffer.kind == "other" or instruction.opcode == "parameter":
            continue
        if instruction.computation != module.entry:
            nested[instruction.computation] += buffer.size_bytes
            continue
        if buffer.instruction in standing:
            standing_bytes += buffer.size_bytes
            continue
        named, fused, is_constant = _equations_at(module, inside, buffer)
        value = stored_value(program, consumers, buffer, named, fused, num_partitions)
        while value in sums:
            value = sums[value][0]
        at = when.get(buffer.instruction)
        if value is not None and at is not None:
            # Its indices have the size of its result, and are made first.
            first = max if value in pool_gradients else min
            position[value] = first(position.get(value, at), at)
        if buffer.kind == "argument":
            continue  # a result that takes over an argument: no memory of its own
        if value is not None:
            size_bytes = max(buffer.size_bytes, buffer.near_bytes)
            stored[value] = max(stored.get(value, 0), size_bytes)
            kept[value] = max(kept.get(value, buffer), buffer, key=_LIFETIME)
            is_half = is_rounded(value, buffer.value_sizes)
            rounded[value] = is_half and rounded.get(value, True)
        elif named:
            workspace[named[0]] = max(workspace[named[0]], buffer.size_bytes)
            if at is not None:
                started[named[0]] = min(started.get(named[0], at), at)
        elif not is_constant:
            unnamed.append(buffer)
        else:
            unmapped += buffer.size_bytes
            is_lasting = buffer.lifetime > lasts
            if buffer.size_bytes in fills:  # Fences part it: `shared_zeros.shared_zeros`.
                early[fills[buffer.size_bytes]] += buffer.size_bytes * is_lasting
            else:
                lasting += buffer.size_bytes * is_lasting
    for index in pool_gradients.values():
        workspace[index] = scratch_bytes(program.eqns[index])
    by_reader = readers_of_unnamed(module, unnamed, _equation_of)
    for index, scratch in by_reader.scratch_bytes.items():
        workspace[index] += scratch
    for buffer, reader in zip(unnamed, by_reader.reader, strict=True):
        is_lasting = buffer.lifetime > lasts
        if reader < 0:
            unmapped += buffer.size_bytes
            lasting += buffer.size_bytes * is_lasting
        elif is_lasting:
            early[reader] += buffer.size_bytes
    _start_reductions(program, started, position)
    for instruction in inside[module.entry]:
        scratch = sum(nested[c] for c in _closure(module, inside, instruction.called))
        equation = _equation_of(instruction)
        if scratch and equation is not None:
            workspace[equation] += scratch
    halves = [v for v, is_half in rounded.items() if is_half]
    fusions = _fused_equations(module, inside) if halves else []
    return Materialization(
        stored,
        dict(workspace),
        position,
        unmapped,
        "compiled",
        num_partitions,
        unlisted_bytes=module.unlisted_bytes + lasting,
        more_unlisted_of_plans=unlisted_of_plans(module) - module.unlisted_bytes,
        early_bytes=dict(early),
        standing_bytes=standing_bytes,
        layouts=layouts_of(program, module, kept, num_partitions),
        rounded=read_rounded(program, halves, consumers, fusions),
    )


def _fused_equations(
    module: StoredModule, inside: dict[int, list[Instruction]]
) -> list[set[int]]:
    """The equations inside of every fusion."""
    return [
        {
            equation
            for computation in _closure(module, inside, fusion.called)
            for i in inside[computation]
            if (equation := _equation_of(i)) is not None
        }
        for fusion in inside[module.entry]
        if fusion.opcode == "fusion"
    ]


def _equations_at(
    module: StoredModule,
    inside: dict[int, list[Instruction]],
    buffer: StoredBuffer,
) -> tuple[list[int], set[int], bool]:
    """The equations whose names a buffer's instruction carries, likeliest first, those
    inside of it, and whether the buffer is a constant's, which is of no equation."""
    instruction = module.instructions[buffer.instruction]
    names = [instruction]
    if instruction.called:
        root = _result(module, instruction.called[0], buffer.shape_index)
        if root is not None:
            names.insert(0 if buffer.shape_index else 1, root)
    if names[0].opcode == "broadcast" and not names[0].op_name:
        return [], set(), True
    called = _closure(module, inside, instruction.called)
    fused = (_equation_of(i) for computation in called for i in inside[computation])
    return (
        [i for i in map(_equation_of, names) if i is not None],
        {i for i in fused if i is not None},
        False,
    )


def _start_reductions(
    program: Program, started: dict[int, int], position: dict[Any, int]
) -> None:
    """XLA:GPU reduces in two steps. The first reads the operand, as soon as it is there;
    the second makes the value, much later."""
    for index, at in started.items():
        eqn = program.eqns[index] if index < len(program.eqns) else None
        if eqn is not None and eqn.primitive.name.startswith("reduce_"):
            for v in writes(eqn):
                if v in position:
                    position[v] = min(position[v], at)


def from_rules(program: Program) -> Materialization:
    """Guess without a compiler: stored is what an operation that cannot fuse touches."""
    stored: dict[Any, int] = {}
    produced = {v for eqn in program.eqns for v in writes(eqn)}
    for eqn in program.eqns:
        if is_fusible(eqn):
            continue
        for var in [*eqn.invars, *writes(eqn)]:
            if not isinstance(var, _compat.Literal) and var in produced:
                stored[var] = aval_bytes(var.aval)
    return Materialization(stored, {}, {}, 0, "rules")


def _equation_of(instruction: Instruction) -> int | None:
    found = _SCOPE_PATTERN.search(instruction.op_name)
    return int(found.group(1)) if found else None


def _instructions_by_computation(module: StoredModule) -> dict[int, list[Instruction]]:
    inside: dict[int, list[Instruction]] = defaultdict(list)
    for instruction in module.instructions.values():
        inside[instruction.computation].append(instruction)
    return inside


def _closure(module, inside, called: Iterable[int]) -> list[int]:
    """All computations reached from `called`."""
    reached: dict[int, None] = {}
    todo = list(called)
    while todo:
        computation = todo.pop()
        if computation in reached:
            continue
        reached[computation] = None
        for instruction in inside[computation]:
            todo += instruction.called
    return list(reached)


def _result(
    module: StoredModule, computation: int, shape_index: tuple[int, ...]
) -> Instruction | None:
    """The instruction that computes one result of a computation."""
    root = module.instructions.get(module.roots.get(computation, -1))
    for index in shape_index:
        if root is None or root.opcode != "tuple":
            return None
        root = module.instructions.get(root.operands[index])
    return root
