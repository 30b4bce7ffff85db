"""Targets: rates by device, the local processor's measured once."""

import json
import types

import jax
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


def test_the_processor_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    targets._cpu_rates.cache_clear()
    first = targets.target_of(jax.devices("cpu")[0])
    [cached] = (tmp_path / "coop_jax").iterdir()
    assert json.loads(cached.read_text())["flops_per_second"] == first.matrix_rate(4)
    assert first.flops_per_second[32] > 1e8
    assert first.bytes_per_second > 1e8
    cached.write_text(json.dumps({"flops_per_second": 3e9, "bytes_per_second": 2e9}))
    targets._cpu_rates.cache_clear()
    assert targets.local_cpu().matrix_rate(2) == 3e9


@pytest.mark.parametrize("content", ["", "[]", '{"flops_per_second": "x"}'])
def test_a_broken_cache_is_measured_again(tmp_path, monkeypatch, content):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = targets._cache_file()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    targets._cpu_rates.cache_clear()
    assert targets.local_cpu().bytes_per_second > 1e8
