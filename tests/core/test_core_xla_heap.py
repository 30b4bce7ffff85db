"""XLA packing against a plain Python one. Against XLA: `test_buffers_from_schedule.py`."""

import numpy as np
import pytest
from core.programs import COMPUTE, RECOMPUTE, Op, Program, programs
from hypothesis import given
from hypothesis import strategies as st
from oracles.xla_heap import heap_bytes

from coop_jax import _ext

BLOCK = st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 5000)).map(
    lambda block: (block[0], block[0] + block[1], block[2])
)


def of_blocks(blocks, alignment):
    columns = np.asarray(blocks, np.int64).reshape(-1, 3).T
    columns = np.ascontiguousarray(columns)
    return _ext.xla_heap_bytes(*columns, alignment=alignment)


@given(st.lists(BLOCK, max_size=60, unique_by=lambda b: (b[1] - b[0], b[2])))
def test_blocks(blocks):
    """Unique keys: between blocks that are alike any order is right."""
    assert of_blocks(blocks, 64) == heap_bytes(blocks, 64)


@given(programs(), st.integers(0, 3))
def test_schedules(program, tightness):
    """The blocks of a schedule, read off its steps without a look at the C++."""
    graph = program.graph()
    options = _ext.PlanOptions(policy="lookahead")
    largest = _ext.unconstrained(graph, options)
    capacity = largest.statistics.peak_bytes * (4 - tightness) // 4
    schedule = _ext.plan(graph, max(capacity, 1), options)
    if not isinstance(schedule, _ext.Schedule):
        schedule = largest
    expected = heap_bytes(list(blocks_of(program, schedule)), options.alignment)
    found = _ext.xla_heap_bytes(graph, schedule)
    assert found == expected >= schedule.statistics.max_live_bytes


def blocks_of(program: Program, schedule):
    made = {}
    for step, tensor, _, taken_over in schedule.placements.tolist():
        made.setdefault(step, []).append((tensor, taken_over))
    sizes = {
        t: 0 if t in program.external else size
        for t, size in enumerate(program.tensor_bytes)
    }
    since = {t: 0 for t, _ in schedule.initial_placements.tolist()}
    ended, time = {}, 0
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind not in (COMPUTE, RECOMPUTE):
            ended[index] = (since.pop(index), time)
            continue
        time += 1
        for tensor, taken_over in made.get(step, ()):
            if taken_over >= 0:
                since[tensor] = ended.pop(taken_over)[0]
            else:
                since[tensor] = time
        yield from ((f, last, sizes[t]) for t, (f, last) in ended.items())
        ended = {}
        yield time, time, program.ops[index].workspace_bytes
    yield from ((f, last, sizes[t]) for t, (f, last) in ended.items())
    yield from ((first, time, sizes[t]) for t, first in since.items())


def test_a_tensor_that_takes_over_a_block_shares_it():
    program = Program(
        ops=[Op([], [0]), Op([0], [1]), Op([1], [2])],
        tensor_bytes=[640, 640, 64],
        output={2},
        in_place=[(1, 0, 1)],
    )
    graph = program.graph()
    schedule = _ext.unconstrained(graph, _ext.PlanOptions())
    assert _ext.xla_heap_bytes(graph, schedule) == 640 + 64


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([(2, 1, 64)], "`last` must not be before `first`"),
        ([(0, 1, -64)], "`bytes` must not be negative"),
    ],
)
def test_malformed_blocks(blocks, message):
    columns = np.ascontiguousarray(np.asarray(blocks, np.int64).T)
    with pytest.raises(ValueError, match=message):
        _ext.xla_heap_bytes(*columns, alignment=64)
