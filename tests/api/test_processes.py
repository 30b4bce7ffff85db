"""Several processes on localhost, with JAX's own distributed runtime: one plan in all, and
errors that are errors in all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import processes_worker
import pytest
from processes_worker import LAYERS, WIDTH

from coop_jax.api import processes
from coop_jax.base import _compat_distributed

TESTS = Path(processes_worker.__file__).parent
SECONDS = 240


def free_port():
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        return listening.getsockname()[1]


def start(num_processes, folder, *cases):
    """The processes, their output going to files of the folder."""
    port, environment = free_port(), dict(os.environ)
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONUNBUFFERED": "1"}
    # The package that is tested here, which may be an installed one.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    started = []
    for rank in range(num_processes):
        with (folder / f"{rank}.out").open("w") as out:
            started.append(
                subprocess.Popen(
                    [
                        *(sys.executable, TESTS / "processes_worker.py"),
                        *map(str, (rank, num_processes, port, folder)),
                        *cases,
                    ],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            )
    return started


def ended(started, seconds=SECONDS):
    """Wait for the processes; those that hang are killed, which fails the test."""
    until = time.monotonic() + seconds
    try:
        return [process.wait(max(0.1, until - time.monotonic())) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


def output(folder, rank):
    return (folder / f"{rank}.out").read_text()


def ran(num_processes, folder, *cases):
    """By case, what each process found."""
    codes = ended(start(num_processes, folder, *cases))
    outputs = [output(folder, rank) for rank in range(num_processes)]
    assert codes == [0] * num_processes, "\n".join(outputs)
    rows = [
        [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        for text in outputs
    ]
    return {case: [row[i] for row in rows] for i, case in enumerate(cases)}


def check_trained(found):
    """One plan and the losses of one process's step as written, twenty times."""
    mesh = jax.make_mesh((1,), ("data",))
    step = jax.jit(processes_worker.step_with(0.5))
    weights, x = processes_worker.arguments(mesh)
    expected = []
    for _ in range(20):
        weights, loss = step(weights, x)
        expected.append(float(loss))
    assert len({row["plan"] for row in found}) == 1
    assert "recomputed" in found[0]["plan"]
    for row in found:
        assert row["losses"] == found[0]["losses"]
        assert row["measured_bytes"] <= row["budget_bytes"]
        np.testing.assert_allclose(row["losses"], expected, rtol=1e-6)


def check_same_error(found, name, text):
    assert [row["error"] for row in found] == [name] * len(found)
    assert len({row["text"] for row in found}) == 1
    assert text in found[0]["text"]


@pytest.mark.slow
def test_two_processes_have_one_plan_and_the_same_errors(tmp_path):
    found = ran(2, tmp_path, "trains", "differs_in_a_constant", "cannot_be_compiled_in_one")
    check_trained(found["trains"])
    check_same_error(
        found["differs_in_a_constant"],
        "ValueError",
        "`remat_train_step` must be given the same step in all processes. Got in process 1 "
        "as equation ",
    )
    own, other = reversed(found["cannot_be_compiled_in_one"])
    assert (own["error"], own["text"]) == ("OSError", "no space left")
    assert other["error"] == "RuntimeError"
    assert other["text"] == (
        "`remat_train_step` failed in process 1, and therefore in all: "
        "OSError: no space left"
    )


@pytest.mark.slow
def test_files_budgets_shapes_and_steps_of_one_process(tmp_path):
    cases = (
        *("meets_other_shapes", "fits", "starts_from_a_file", "has_a_plan_of_another_step"),
        *("asks_for_too_little", "differs_in_shapes", "differs_in_its_budget"),
        "is_of_one_process",
    )
    found = ran(2, tmp_path, *cases)
    shapes = found["meets_other_shapes"]
    assert len({row["second"] for row in shapes}) == 1
    assert shapes[0]["second"] != shapes[0]["plan"]
    assert all("2 planned" in row["step"] for row in shapes)
    assert all(row["is_unmodified"] for row in found["fits"])
    for row in found["starts_from_a_file"]:
        assert row["again"] == row["losses"]
        assert row["num_compilations"] == 1
    another = found["has_a_plan_of_another_step"]
    check_same_error(another, "PlanFileError", f"The argument {LAYERS} differs: the file")
    little = found["asks_for_too_little"]
    check_same_error(little, "InfeasibleBudgetError", "must be at least")
    assert little[0]["smallest_bytes"] == little[1]["smallest_bytes"] > 0
    shapes = found["differs_in_shapes"]
    check_same_error(shapes, "ValueError", f"as argument {LAYERS} `float32[4096,{WIDTH}]")
    budgets = found["differs_in_its_budget"]
    check_same_error(budgets, "ValueError", "as budget '71%', and in process 0 '70%'.")
    assert "is_unmodified" in found["is_of_one_process"][0]


@pytest.mark.slow
def test_four_processes_have_one_plan(tmp_path):
    check_trained(ran(4, tmp_path, "trains")["trains"])


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_killed_while_planning_ends_the_others(tmp_path, killed):
    """JAX itself ends the others of process 0, where the service of its processes runs."""
    started = start(3, tmp_path, "plans")
    while "unmodified step" not in output(tmp_path, 0) and started[0].poll() is None:
        time.sleep(0.02)
    started[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    codes = ended(started)
    assert time.monotonic() - began < 60
    assert codes[killed] == -signal.SIGKILL
    for rank in {0, 1, 2} - {killed}:
        text = output(tmp_path, rank)
        assert codes[rank] != 0
        if killed == 0:
            assert "the JAX distributed service detected fatal errors" in text
        else:
            assert (
                "RuntimeError: `remat_train_step` plans a step together with all "
                "processes that have a part of it. Got no answer: process 1 has been "
                "silent for 30 s. See the output of that process, and start all of them "
                "again."
            ) in text


class DictStore:
    """A store in memory, of which process 0 is the only one that comes."""

    def __init__(self):
        self.values = {}

    def put(self, key, value):
        self.values[key] = value

    def wait_for(self, key, seconds):
        return self.values.get(key)

    def folder(self, prefix):
        return {
            k.removeprefix(prefix): v
            for k, v in self.values.items()
            if k.startswith(prefix)
        }


def test_a_process_that_does_not_come_is_an_error(monkeypatch):
    monkeypatch.setattr(processes, "_ARRIVAL_SECONDS", 0.01)
    step = {"equations": [], "arguments": [], "results": []}
    expected = r"Got no answer: process 1 did not call it for 0 s\."
    with pytest.raises(RuntimeError, match=expected):
        processes.fit_together(DictStore(), (0, 1), step, None, None, "remat_train_step")


def test_a_single_process_exchanges_nothing():
    assert _compat_distributed.shared_store() is None
