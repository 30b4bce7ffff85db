"""The authors' own in-place vectors, with numbers: old values survive their mutation.

Tensors of 4 MiB in a pool of three. A scratch tensor as large as the pool stands for the
authors' explicit evictions: it drives everything else out.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from core.programs import COMPUTE, EVICT, RECOMPUTE, Op, Program, steps_as_text

from coop_jax import _ext

MIB = 2**20
OPTIONS = {
    "coop": {},
    "coop_no_window": {"sliding_window": False},
    "coop_no_partition": {"partition": False},
    "coop_no_in_place": {"recomputable_in_place": False},
    "dtr": {"policy": "dtr"},
    "dte": {"policy": "dte"},
}


@dataclasses.dataclass
class Numeric:
    """A program as one reads it, with what its operations compute."""

    program: Program
    functions: list[Callable[..., float] | None]
    names: list[str]


def write(*lines: tuple) -> Numeric:
    """Lines (result, operands, function[, mutated operand]).

    Result "evict all": the scratch tensor. "read x": a use of x without a result. All
    handles are held to the end, but for the scratch tensor's.
    """
    names, ops, sizes, in_place, releases, functions = [], [], [], [], [], []
    index_of = {}
    for result, operands, function, *mutated in lines:
        inputs = [index_of[name] for name in operands]
        t, op = len(names), len(ops)
        names.append(result)
        sizes.append({"evict all": 12 * MIB, "read": 0}.get(result, 4 * MIB))
        ops.append(Op(inputs, [t]))
        functions.append(function)
        if mutated:
            in_place.append((op, index_of[mutated[0]], t))
        if result == "evict all":
            releases.append((op, t))
        index_of[result] = t
    program = Program(ops, sizes, in_place=in_place, releases=releases)
    return Numeric(program, functions, names)


def reads(numeric: Numeric, schedule) -> list[float]:
    """The values that the "read" operations see, with all tensors in one buffer."""
    program = numeric.program
    buffer = np.full(schedule.capacity // MIB, np.nan)
    where: dict[int, slice] = {}
    rows = schedule.placements.tolist()
    seen = []
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind not in (COMPUTE, RECOMPUTE):
            continue
        operands = []
        for t in program.ops[index].inputs:
            (value,) = set(buffer[where[t]].tolist())  # nan: nothing equals it
            operands.append(value)
        if numeric.names[index] == "read":
            seen += operands
        for _, t, offset, _ in (row for row in rows if row[0] == step):
            size = program.tensor_bytes[t] // MIB
            where[t] = slice(offset // MIB, offset // MIB + size)
            function = numeric.functions[index]
            buffer[where[t]] = np.inf if function is None else function(*operands)
    return seen


def plan(numeric: Numeric, options: dict):
    graph = numeric.program.graph()
    schedule = _ext.plan(graph, 12 * MIB, _ext.PlanOptions(**options))
    assert isinstance(schedule, _ext.Schedule), schedule
    assert _ext.validate(graph, schedule) == []
    return schedule


def evicted(numeric: Numeric, schedule) -> set[str]:
    return {numeric.names[t] for kind, t in schedule.steps.tolist() if kind == EVICT}


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_add_in_place(name):
    """x1 = ones; x2 = x1 + 1; x2 += x1; x3 = relu(x2); x4 = x3 + 1; evict all; x4 = 4."""
    numeric = write(
        ("x1", [], lambda: 1.0),
        ("x2 old", ["x1"], lambda x1: x1 + 1),
        ("x2", ["x2 old", "x1"], lambda x2, x1: x2 + x1, "x2 old"),
        ("x3", ["x2"], lambda x2: max(x2, 0.0)),
        ("x4", ["x3"], lambda x3: x3 + 1),
        ("evict all", [], None),
        ("read", ["x4"], None),
        ("read", ["x3"], None),
        ("read", ["x2"], None),
        ("read", ["x1"], None),
    )
    schedule = plan(numeric, OPTIONS[name])
    assert {"x1", "x2 old", "x2", "x3", "x4"} <= evicted(numeric, schedule)
    assert reads(numeric, schedule) == [4.0, 3.0, 3.0, 1.0]


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_constant_in_place(name):
    """x1 = ones; x2 = x1 + 1; x1 <- 5; evict both: x2 keeps what it owes the old x1."""
    numeric = write(
        ("x1 old", [], lambda: 1.0),
        ("x2", ["x1 old"], lambda x1: x1 + 1),
        ("x1", ["x1 old"], lambda x1: 5.0, "x1 old"),
        ("evict all", [], None),
        ("read", ["x2"], None),
        ("read", ["x1"], None),
    )
    schedule = plan(numeric, OPTIONS[name])
    assert {"x2", "x1"} <= evicted(numeric, schedule)
    assert reads(numeric, schedule) == [2.0, 5.0]


def test_the_mutation_takes_no_memory_of_its_own():
    numeric = write(
        ("x1", [], lambda: 1.0),
        ("x2 old", ["x1"], lambda x1: x1 + 1),
        ("other", [], lambda: 7.0),
        ("x2", ["x2 old", "x1"], lambda x2, x1: x2 + x1, "x2 old"),
        ("read", ["x2"], None),
    )
    schedule = plan(numeric, {"partition": False})
    # Nothing but the old value of x2 had to go, and that only in name.
    assert steps_as_text(schedule) == "C0 C1 C2 E1 C3 C4"
    old, new = (row for row in schedule.placements.tolist() if row[1] in (1, 3))
    assert new[2:] == [old[2], 1]
