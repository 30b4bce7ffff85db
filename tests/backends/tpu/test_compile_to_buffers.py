"""Compilations for TPUs that are not there, which end once the buffers are assigned."""

import os
import pathlib
import subprocess
import sys
import time

import jax
import pytest
from steps import NEEDS_TPU, mlp_arguments, mlp_step, traced

import coop_jax
from coop_jax.backends.tpu import compile_to_buffers
from coop_jax.xla import absent_devices, memory_figures
from coop_jax.xla.hlo_module import read_module
from coop_jax.xla.protobuf_wire import fields


def mlp_shapes(layers, batch, width):
    """Of `mlp_arguments`: no array is made."""
    weight = jax.ShapeDtypeStruct((width, width), "float32")
    return [weight] * layers, jax.ShapeDtypeStruct((batch, width), "float32")


def step_for(target, layers=2, batch=64, width=64):
    shapes = mlp_shapes(layers, batch, width)
    placed = absent_devices.placed(shapes, absent_devices.named_device(target))
    return traced(mlp_step, *placed, donate_argnums=0)


@NEEDS_TPU
def test_the_figures_are_those_of_a_whole_compilation(tmp_path):
    step = step_for("v5e", layers=4, batch=32768, width=256)
    lowered = step.lower(step.program)
    assigned = step.compile_lowered(lowered)
    assert isinstance(assigned, compile_to_buffers.AssignedStep)
    assert not assigned.is_refused
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True}
    whole = lowered.compile(options)
    [dump] = tmp_path.glob("*.after_optimizations.hlo.pb")
    found = compile_to_buffers.assigned_bytes(dict(fields(dump.read_bytes()))[3])
    assert found == assigned.memory_analysis()
    analysis = whole.memory_analysis()
    assert found.argument_size_in_bytes == analysis.argument_size_in_bytes
    assert found.output_size_in_bytes == analysis.output_size_in_bytes
    assert found.alias_size_in_bytes == analysis.alias_size_in_bytes
    [published] = whole.runtime_executable().hlo_modules()
    module = read_module(published.as_serialized_hlo_module_proto())
    assert read_module(assigned.module).sequences.keys() == module.sequences.keys()


@NEEDS_TPU
def test_the_user_s_compiler_options_are_obeyed():
    shapes = mlp_shapes(layers=2, batch=64, width=64)
    options = {"xla_there_is_no_such_option": "1"}
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_there_is_no_such_option"):
        coop_jax.fit(
            mlp_step, *shapes, target="tpu v5e", budget="1GiB", compiler_options=options
        )


@NEEDS_TPU
def test_another_package_in_the_working_directory_is_not_taken(tmp_path, monkeypatch):
    """A checkout, without the compiled extension, where an installed coop_jax is used."""
    (tmp_path / "coop_jax").mkdir()
    (tmp_path / "coop_jax" / "__init__.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    step = step_for("v5e")
    assert step.compile(step.program).memory_analysis().argument_size_in_bytes > 0


@NEEDS_TPU
def test_what_the_device_cannot_hold_is_refused_and_measured():
    """By XLA's own words, where the compilation is a whole one."""
    step = step_for("v5e", layers=4, batch=2**22, width=512)
    lowered = step.lower(step.program)
    assigned = step.compile_lowered(lowered)
    assert assigned.is_refused
    compiled, total_bytes = memory_figures.compile_measured(lambda: assigned)
    assert compiled is None
    assert memory_figures.compile_to_read(lambda: assigned) is assigned
    refused, said_bytes = memory_figures.compile_measured(lowered.compile)
    assert refused is None
    assert total_bytes == pytest.approx(said_bytes, rel=0.01)


@NEEDS_TPU
@pytest.mark.slow
def test_a_step_is_planned_for_a_chip_that_is_not_there():
    shapes = mlp_shapes(layers=24, batch=2**18, width=512)
    plan = coop_jax.fit(mlp_step, *shapes, target="v5e", budget="8GiB", donate_argnums=0)
    assert plan.measured_bytes <= plan.budget_bytes < plan.unmodified_bytes
    assert plan.measured_bytes == pytest.approx(plan.predicted_bytes, rel=0.1)


@NEEDS_TPU
def test_other_errors_of_the_compiler_are_passed_on():
    step = step_for("v5e")
    lowered = step.lower(step.program)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        step.compile_lowered(lowered, {"xla_no_such_option": True})


@NEEDS_TPU
def test_a_compilation_that_dies_says_so(monkeypatch):
    step = step_for("v5e")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        step.compile(step.program)
    assert str(caught.value) == (
        "`target='tpu v5e'`: XLA's compilation, in a process of its own, ended with exit "
        "status 1. Its last words: none; is there memory enough?"
    )


def test_devices_that_are_there_are_compiled_for_as_ever():
    step = traced(mlp_step, *mlp_arguments())
    assert not compile_to_buffers.is_enough_for(step.device())
    assert isinstance(step.compile(step.program), jax.stages.Compiled)


def test_a_child_ends_when_its_parent_is_killed():
    child = f"from {compile_to_buffers.__name__} import _end_with_parent as e; e()"
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-P", "-c", {child!r}])
time.sleep(5)
print(child.pid, child.poll(), flush=True)
time.sleep(600)
"""
    paths = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", parent],
        env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid, ended = process.stdout.readline().split()
        assert ended == "None"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for _ in range(100):
        if not is_running(int(pid)):
            return
        time.sleep(0.1)
    pytest.fail("the child goes on")


def is_running(pid: int) -> bool:
    """Not counting what has ended and waits for someone to ask."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
