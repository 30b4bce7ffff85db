"""Targets: rates by device, the same for every processor."""

import os
import subprocess
import sys
import types

import pytest

from coop_jax import targets


def device(platform, kind):
    return types.SimpleNamespace(platform=platform, device_kind=kind)


def test_devices_by_name():
    assert targets.target_of(device("gpu", "NVIDIA H200")).name == "h200"
    assert targets.target_of(device("gpu", "NVIDIA A100-SXM4-80GB")).name == "a100"
    assert targets.target_of(device("gpu", "NVIDIA H200 141GB HBM3e")).name == "h200"
    assert targets.target_of(device("tpu", "TPU v4")).name == "tpu v4"
    assert targets.target_of(device("tpu", "TPU v5 lite")).name == "tpu v5e"
    assert targets.target_of(device("tpu", "TPU v5")).name == "tpu v5p"
    assert targets.target_of(device("tpu", "TPU v6 lite")).name == "tpu v6e"


@pytest.mark.parametrize(
    ("name", "row"),
    [("H200", "h200"), ("v5e", "tpu v5e"), ("TPU-v5e", "tpu v5e"), ("tpu_v4", "tpu v4")],
)
def test_names_as_people_write_them(name, row):
    assert targets.named(name).name == row


def test_every_row_is_complete():
    for name in targets.names():
        target = targets.named(name)
        assert target.name == name
        assert target.matrix_rate(2) >= target.matrix_rate(4) > target.bytes_per_second
        assert (target.memory_bytes is None) == (name == "cpu")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"`target=` must be one of 'cpu', 'a100'.*'tpu"):
        targets.named("hal 9000")


def test_an_unknown_accelerator_gets_its_platforms_rates():
    assert targets.target_of(device("gpu", "Imaginary 9000")).platform == "gpu"
    assert targets.target_of(device("tpu", "TPU v99")).platform == "tpu"


def test_rates_of_a_processor_are_those_of_every_processor(tmp_path):
    """Not measured, under whatever load there is, and nothing is kept on disk."""
    ask = (
        "import jax\nfrom coop_jax import targets\n"
        "print(targets.named('cpu') == targets.target_of(jax.devices('cpu')[0]))\n"
        "print(targets.named('cpu'))"
    )
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = subprocess.run(
        [sys.executable, "-P", "-c", ask],
        env={**os.environ, **home, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines() == ["True", str(targets.named("cpu"))]
    assert not [path for path in tmp_path.rglob("*") if "coop" in path.name]
