"""Small programs for the planner tests: built by hand, at random, and executed.

`Program` is a readable description of a `_ext.Graph`. `run_straight` and `run_schedule`
are two interpreters: the first keeps every value, the second keeps all of them in one
buffer at the offsets of a schedule. Agreement is the oracle of the offsets.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from coop_jax import _ext

COMPUTE, RECOMPUTE, EVICT, FREE = range(4)
NEVER = 2**63 - 1


@dataclasses.dataclass
class Op:
    inputs: Sequence[int]
    outputs: Sequence[int]
    seconds: float = 1.0
    workspace_bytes: int = 0
    recomputable: bool = True


@dataclasses.dataclass
class Program:
    ops: list[Op]
    tensor_bytes: list[int]
    external: set[int] = dataclasses.field(default_factory=set)
    pinned: set[int] = dataclasses.field(default_factory=set)
    output: set[int] = dataclasses.field(default_factory=set)
    in_place: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    overwrites: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    releases: list[tuple[int, int]] | None = None

    def arrays(self) -> dict[str, np.ndarray | None]:
        """The arguments of `_ext.Graph`."""
        inputs = [list(op.inputs) for op in self.ops]
        outputs = [list(op.outputs) for op in self.ops]
        return {
            "op_seconds": np.array([op.seconds for op in self.ops], np.float64),
            "op_workspace_bytes": _ints([op.workspace_bytes for op in self.ops]),
            "op_recomputable": np.array([op.recomputable for op in self.ops], bool),
            "op_inputs_ptr": _ints(np.cumsum([0, *map(len, inputs)])),
            "op_inputs": _ints(list(itertools.chain(*inputs))),
            "op_outputs_ptr": _ints(np.cumsum([0, *map(len, outputs)])),
            "op_outputs": _ints(list(itertools.chain(*outputs))),
            "tensor_bytes": _ints(self.tensor_bytes),
            "tensor_external": self._flags(self.external),
            "tensor_pinned": self._flags(self.pinned),
            "tensor_output": self._flags(self.output),
            "in_place": _ints(self.in_place).reshape(-1, 3),
            "overwrites": _ints(self.overwrites).reshape(-1, 3),
            "releases": None
            if self.releases is None
            else _ints(self.releases).reshape(-1, 2),
        }

    def graph(self) -> _ext.Graph:
        return _ext.Graph(**self.arrays())

    def producers(self) -> dict[int, int]:
        return {t: i for i, op in enumerate(self.ops) for t in op.outputs}

    def _flags(self, members: set[int]) -> np.ndarray:
        return np.isin(np.arange(len(self.tensor_bytes)), sorted(members))


def _ints(values) -> np.ndarray:
    return np.asarray(values, np.int64)


def chain(
    length: int, tensor_bytes: int = 1024, seconds: Sequence[float] | None = None
) -> Program:
    """Forward through `length` operations, then backward reading every activation.

    Tensor 0 is the external input, 1..length are activations, the rest gradients; the
    last gradient is the output.
    """
    ops = [Op([k], [k + 1]) for k in range(length)]
    ops += [Op([length + k, length - 1 - k], [length + 1 + k]) for k in range(length)]
    for op, cost in zip(ops, seconds or [], strict=False):
        op.seconds = cost
    num_tensors = 2 * length + 1
    return Program(
        ops, [tensor_bytes] * num_tensors, external={0}, output={num_tensors - 1}
    )


@st.composite
def programs(draw: st.DrawFn, max_ops: int = 25) -> Program:
    """Several outputs per operation, in place, mutation, workspaces, empty tensors."""
    sizes = st.sampled_from([0, 1, 64, 64, 100, 256, 256, 1000])
    program = Program([], [])
    readable: list[int] = []

    def new_tensor(num_bytes: int, kind: str) -> int:
        t = len(program.tensor_bytes)
        program.tensor_bytes.append(num_bytes)
        if kind == "external":
            program.external.add(t)
        if kind == "pinned":
            program.pinned.add(t)
        readable.append(t)
        return t

    def kind_of(t: int) -> str:
        if t in program.external:
            return "external"
        return "pinned" if t in program.pinned else "plain"

    for _ in range(draw(st.integers(1, 4))):
        new_tensor(draw(sizes), draw(st.sampled_from(["external", "pinned", "plain"])))
    for i in range(draw(st.integers(1, max_ops))):
        inputs = draw(st.lists(st.sampled_from(readable), max_size=3))
        op = Op(
            inputs,
            [],
            seconds=draw(st.sampled_from([0.0, 1.0, 2.0, 10.0, 50.0])),
            workspace_bytes=draw(st.sampled_from([0, 0, 0, 64, 200])),
            recomputable=draw(st.integers(0, 9)) > 0,
        )
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
            how = draw(st.sampled_from(["plain", "plain", "in_place", "overwrite"]))
            source = draw(st.sampled_from(inputs)) if inputs else None
            if source is None or source not in readable:
                how = "plain"
            elif how == "overwrite" and kind_of(source) == "plain":
                how = "in_place"
            elif how == "in_place" and kind_of(source) == "external":
                how = "plain"
            if how == "plain":
                kind = draw(st.sampled_from(["plain"] * 8 + ["external", "pinned"]))
                op.outputs.append(new_tensor(draw(sizes), kind))
            elif how == "in_place":
                t = new_tensor(program.tensor_bytes[source], "plain")
                op.outputs.append(t)
                program.in_place.append((i, source, t))
            else:
                t = new_tensor(program.tensor_bytes[source], kind_of(source))
                op.outputs.append(t)
                program.overwrites.append((i, source, t))
                readable.remove(source)
        # An operation does not read what it makes.
        program.ops.append(op)
        if not readable:
            new_tensor_op = Op([], [new_tensor(64, "plain")])
            program.ops.append(new_tensor_op)
            break
    program.output = set(draw(st.lists(st.sampled_from(readable), max_size=3)))
    return program


def run_op(index: int, output: int, num_bytes: int, operands: list[bytes]) -> bytes:
    """The value an operation gives an output: a hash of all it reads, drawn out."""
    seed = zlib.crc32(b"|".join(operands), index * 1009 + output)
    return np.random.default_rng(seed).bytes(num_bytes)


def initial_value(t: int, num_bytes: int) -> bytes:
    return np.random.default_rng(t).bytes(num_bytes)


def run_straight(program: Program) -> dict[int, bytes]:
    """Every value the program ever makes."""
    made = program.producers()
    values = {
        t: initial_value(t, num_bytes)
        for t, num_bytes in enumerate(program.tensor_bytes)
        if t not in made
    }
    for i, op in enumerate(program.ops):
        operands = [values[t] for t in op.inputs]
        for t in op.outputs:
            values[t] = run_op(i, t, program.tensor_bytes[t], operands)
    return values


class Memory:
    """One buffer that holds what a schedule says, garbage everywhere else."""

    def __init__(self, program: Program, schedule: _ext.Schedule):
        self.program = program
        self.buffer = bytearray(b"\xaa" * schedule.capacity)
        self.offsets: dict[int, int] = {}
        self.external: dict[int, bytes] = {}

    def write(self, t: int, value: bytes, offset: int) -> None:
        self.offsets[t] = offset
        self.buffer[offset : offset + len(value)] = value

    def read(self, t: int) -> bytes:
        if t in self.program.external:
            return self.external[t]
        offset = self.offsets[t]
        return bytes(self.buffer[offset : offset + self.program.tensor_bytes[t]])

    def scribble(self, offset: int, num_bytes: int) -> None:
        self.buffer[offset : offset + num_bytes] = b"\xbb" * num_bytes


def run_schedule(program: Program, schedule: _ext.Schedule) -> dict[int, bytes]:
    """Executes `schedule` in one buffer; the values of the outputs.

    A dropped block is scribbled over at once, unless it is taken over, and so is a
    workspace before and after its operation.
    """
    memory = Memory(program, schedule)
    made = program.producers()
    for t in sorted(program.external - made.keys()):
        memory.external[t] = initial_value(t, program.tensor_bytes[t])
    for t, offset in schedule.initial_placements.tolist():
        memory.write(t, initial_value(t, program.tensor_bytes[t]), offset)
    placements: dict[int, list[list[int]]] = {}
    for step, *placement in schedule.placements.tolist():
        placements.setdefault(step, []).append(placement)
    workspaces = dict(schedule.workspaces.tolist())
    pending: list[int] = []  # Dropped since the last operation.

    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind in (EVICT, FREE):
            pending.append(index)
            continue
        here = placements.get(step, [])
        kept = {taken_over for _, _, taken_over in here}
        for t in pending:
            if t not in kept:
                memory.scribble(memory.offsets[t], program.tensor_bytes[t])
        pending = []
        op = program.ops[index]
        if step in workspaces:
            memory.scribble(workspaces[step], op.workspace_bytes)
        operands = [memory.read(t) for t in op.inputs]
        for t, offset, _ in here:
            value = run_op(index, t, program.tensor_bytes[t], operands)
            memory.write(t, value, offset)
        if step in workspaces:
            memory.scribble(workspaces[step], op.workspace_bytes)
        if kind == COMPUTE:
            for t in program.external & set(op.outputs):
                memory.external[t] = run_op(index, t, program.tensor_bytes[t], operands)
            for i, old, _ in program.overwrites:
                if i == index:
                    memory.external.pop(old, None)
    return {t: memory.read(t) for t in program.output}


def peak_without_eviction(program: Program, **options) -> int:
    options = _ext.PlanOptions(**options)
    return _ext.unconstrained(program.graph(), options).statistics.peak_bytes


def steps_as_text(schedule: _ext.Schedule) -> str:
    """ "C0 C1 F0 E1": kind and operation or tensor of every step."""
    return " ".join(f"{'CREF'[kind]}{index}" for kind, index in schedule.steps.tolist())
