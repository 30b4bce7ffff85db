"""No graph, schedule, block, body or handle crashes the process, whatever is in it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from core.programs import chain

from coop_jax import _ext

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("first", [0, 300])
def test_corrupted_input_is_refused_or_reported(first):
    """In a process of its own, which a crash would end."""
    ran = subprocess.run(
        [sys.executable, TESTS / "core/corrupted.py", str(first), str(first + 300)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    counts = dict(line.split(": ") for line in ran.stdout.splitlines())
    # All of it was tried, with both ends.
    functions = "Graph", "Schedule", "xla_heap_bytes", "pack", "plan", "find_window"
    for function in (*functions, "retention_frontier"):
        assert int(counts[f"{function} takes"]) > 10, counts
        assert int(counts[f"{function} refuses"]) > 10, counts
    assert int(counts["valid"]) > 10
    assert int(counts["not valid"]) > 50


def schedule_of(graph, **changes):
    made = _ext.unconstrained(graph, _ext.PlanOptions())
    arrays = {
        "steps": made.steps,
        "placements": made.placements,
        "initial_placements": made.initial_placements,
        "workspaces": made.workspaces,
        **changes,
    }
    return _ext.Schedule(**arrays, capacity=2**20, peak_bytes=made.statistics.peak_bytes)


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("steps", [0, 8], "runs operation 8 of 8"),
        ("steps", [0, -1], "runs operation -1 of 8"),
        ("steps", [1, 2**62], "runs operation 4611686018427387904 of 8"),
        ("steps", [0, 3], "step 15 computes operation 3 when 8 are computed"),
        ("steps", [4, 0], "is of the unknown kind 4"),
        ("steps", [-1, 0], "is of the unknown kind -1"),
        ("steps", [2, 9], "it names tensor 9 of 9"),
        ("steps", [3, -1], "it names tensor -1 of 9"),
        ("steps", [3, 0], "it drops tensor 0, which is not there"),
        ("initial_placements", [9, 0], "it names tensor 9 of 9"),
        ("initial_placements", [-1, 0], "it names tensor -1 of 9"),
        ("initial_placements", [3, 0], "it places tensor 3, which operation 2 makes, with"),
        ("placements", [0, 9, 0, -1], "it names tensor 9 of 9"),
        ("placements", [0, 1, 0, -1], "it places tensor 1, which is there already"),
        ("placements", [0, 2, 0, -1], "it places tensor 2, which operation 1 makes, with"),
        (
            "placements",
            [-1, 1, 0, -1],
            "a placement is of step -1, which runs no operation",
        ),
        (
            "placements",
            [99, 1, 0, -1],
            "a placement is of step 99, which runs no operation",
        ),
    ],
)
def test_xla_heap_bytes_checks_the_schedule(table, row, message):
    graph = chain(4).graph()
    made = _ext.unconstrained(graph, _ext.PlanOptions())
    rows = [*getattr(made, table).tolist(), row]
    if table == "placements":
        rows.sort(key=lambda placement: placement[0])
    spoilt = schedule_of(graph, **{table: np.array(rows, np.int64)})
    text = f"xla_heap_bytes: `schedule` must be one of `graph`, but .*{message}"
    with pytest.raises(ValueError, match=text):
        _ext.xla_heap_bytes(graph, spoilt)
    assert _ext.validate(graph, spoilt)


@pytest.mark.parametrize("taken_over", [9, -2, 2**62])
def test_xla_heap_bytes_checks_what_is_taken_over(taken_over):
    graph = chain(4).graph()
    placements = _ext.unconstrained(graph, _ext.PlanOptions()).placements.copy()
    placements[1, 3] = taken_over
    spoilt = schedule_of(graph, placements=placements)
    with pytest.raises(ValueError, match=f"it names tensor {taken_over} of 9"):
        _ext.xla_heap_bytes(graph, spoilt)


def test_xla_heap_bytes_of_another_graph():
    for one, other in [(chain(4), chain(9)), (chain(9), chain(4))]:
        schedule = _ext.unconstrained(one.graph(), _ext.PlanOptions())
        with pytest.raises(ValueError, match="`schedule` must be one of `graph`, but"):
            _ext.xla_heap_bytes(other.graph(), schedule)
        assert _ext.validate(other.graph(), schedule)


@pytest.mark.parametrize("offset", [2**63 - 1, 2**63 - 64, -(2**63), 2**62])
def test_the_validator_takes_offsets_of_any_size(offset):
    graph = chain(4).graph()
    placements = _ext.unconstrained(graph, _ext.PlanOptions()).placements.copy()
    placements[1, 2] = offset
    texts = _ext.validate(graph, schedule_of(graph, placements=placements))
    assert any("out_of_range" in text for text in texts)
