"""Exchanges compiled for an H200 that need not be there: needs JAX's CUDA plugin."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from steps import NEEDS_CUDA

from coop_jax import _ext

pytestmark = [
    NEEDS_CUDA,
    pytest.mark.skipif(not _ext.has_cuda, reason="built without CUDA"),
]


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    return tmp_path_factory.mktemp("dump")


@pytest.fixture(scope="module")
def compiled(dump):
    flags = f"--xla_gpu_autotune_level=0 --xla_dump_hlo_as_text --xla_dump_to={dump}"
    program = pathlib.Path(__file__).parent / "compile_for_h200.py"
    output = subprocess.run(
        [sys.executable, program],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    ).stdout
    return json.loads(output)


def test_a_donated_arena_is_never_copied(compiled):
    assert "H200" in compiled["device"]
    assert compiled["exchanges"] == 6
    assert compiled["copies"] == 0
    assert compiled["alias_bytes"] == 1 << 20
    assert compiled["temp_bytes"] < 1 << 18


def test_all_exchanges_are_captured_in_one_graph(compiled, dump):
    """One that XLA may not capture would split the command buffer."""
    assert compiled["exchanges"] == 6
    [thunks] = dump.glob("*thunk_sequence_after_thunk_passes.txt")
    lines = thunks.read_text().splitlines()
    assert sum("kCommandBuffer" in line for line in lines) == 1
    nested = [line for line in lines if line.startswith(" ") and "kCustomCall" in line]
    assert len(nested) == 6
