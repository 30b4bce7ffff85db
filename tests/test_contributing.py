"""The diffs of CONTRIBUTING: additions apply, and the quirk shown is the package's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from readme_tables import ROOT

import coop_jax

PACKAGE = Path(coop_jax.__file__).parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BACKEND = """
from steps import mlp_arguments, mlp_step
import coop_jax
from coop_jax import backends
cautious = backends.named("cautious")
assert type(cautious).__name__ == "CautiousBackend"
with backends.registered("cpu", cautious):
    step = coop_jax.remat_train_step(
        mlp_step, budget="80%", planner="lookahead", donate_argnums=0
    )
    plan = step.plan(*mlp_arguments())
assert plan.recomputed_flops > 0
assert plan.measured_bytes <= plan.budget_bytes
"""
TARGET = """
from coop_jax import targets
assert targets.named("my gpu").bytes_per_second == 2e12
"""


def files(diff: str) -> dict[str, list[str]]:
    """The lines of a diff by file."""
    parts = re.split(r"^\+\+\+ coop_jax/(\S+)\n", diff, flags=re.MULTILINE)[1:]
    return {
        path: [line for line in text.splitlines() if line]
        for path, text in zip(parts[::2], parts[1::2], strict=True)
    }


def applied(before: list[str], diff: list[str]) -> list[str]:
    """A file's lines with those of a diff behind the ones that it names."""
    after, place = list(before), len(before)
    for line in diff:
        sign, text = line[0], line[1:]
        if sign == " ":
            assert after.count(text) == 1, f"not once in the file: {text}"
            place = after.index(text) + 1
        else:
            assert sign == "+"
            after.insert(place, text)
            place += 1
    return after


@pytest.mark.parametrize(
    ("name", "check"),
    [("cautious", BACKEND), ("my gpu", TARGET)],
    ids=["backend", "target"],
)
def test_additions_work_in_a_copy_of_the_package(tmp_path, name, check):
    [diff] = [diff for diff in DIFFS if f'"{name}"' in diff]
    copy = tmp_path / "coop_jax"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path, lines in files(diff).items():
        file = copy / path
        before = file.read_text().splitlines() if file.exists() else []
        file.write_text("\n".join(applied(before, lines)) + "\n")
    places = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    ran = subprocess.run(
        [sys.executable, "-c", check],
        env={**os.environ, "PYTHONPATH": places},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


def test_the_quirk_that_is_shown_is_the_one_of_the_package():
    [diff] = [diff for diff in DIFFS if "SHARED_ZEROS" in diff]
    for path, lines in files(diff).items():
        text = (PACKAGE / path).read_text()
        assert all(line in text.splitlines() for line in (line[1:] for line in lines)), path


def test_every_diff_is_checked():
    checked = ("CautiousBackend", "SHARED_ZEROS", "my gpu")
    assert all(any(name in diff for name in checked) for diff in DIFFS)
    assert len(DIFFS) == len(checked)


def test_the_places_of_things_exist():
    table = PAGE[PAGE.index("## Where is it?") : PAGE.index("## Stages")]
    paths = re.findall(r"`((?:coop_jax|xla_ext)/[\w./]+)`", table)
    assert len(paths) >= 16
    assert [path for path in paths if not (ROOT / path).exists()] == []
