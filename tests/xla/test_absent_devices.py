"""Devices that are not there: what `target=` and `fit` do with them.

Those that compile need JAX's CUDA plugin or libtpu; without, they are skipped.
"""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from models import transformer_problem
from steps import NEEDS_CUDA, NEEDS_TPU, mlp_arguments, mlp_step

import coop_jax
from coop_jax import targets
from coop_jax.base import absent_topologies
from coop_jax.compile import as_written
from coop_jax.search import problem
from coop_jax.xla import absent_devices, memory_figures

GPUS = ["a100", "h100", "h200", "b200"]
# The planner does not matter here: the fast one.
SIXTY = {"budget": "60%", "planner": "lookahead"}


@pytest.fixture(scope="module")
def arguments():
    return mlp_arguments()


def transformer(**sizes):
    """A Flax transformer's step with the shapes of its arguments; no array is made."""
    step = []

    def build():
        problem = transformer_problem(**sizes)
        step.append(problem.train_step)
        return problem.state, problem.batch, problem.key

    return jax.eval_shape(build), step[0]


@pytest.mark.parametrize(
    ("target", "package", "extra"),
    [("h200", "jax[cuda13]", "cuda"), ("v5e", "jax[tpu]", "tpu")],
)
def test_a_missing_compiler_says_what_to_install(
    arguments, monkeypatch, target, package, extra
):
    monkeypatch.setattr(absent_topologies, "is_installed", lambda module: False)
    absent_topologies._described.cache_clear()
    with pytest.raises(ImportError) as caught:
        coop_jax.fit(mlp_step, *arguments, target=target)
    text = str(caught.value)
    assert f"`target='{targets.named(target).name}'` needs XLA's compiler" in text
    assert f"comes with `{package}`" in text
    assert f'Run `pip install "coop-jax[{extra}]"`' in text
    assert "the device itself is not needed" in text


def test_a_plugin_that_fails_says_what_to_set(arguments, monkeypatch):
    def fail(recipe):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(absent_topologies, "is_installed", lambda module: True)
    monkeypatch.setattr(absent_topologies, "_gpus", fail)
    absent_topologies._described.cache_clear()
    with pytest.raises(RuntimeError, match=r"no such thing.*JAX_PLATFORMS=cpu before"):
        coop_jax.fit(mlp_step, *arguments, target="h200")


@pytest.mark.parametrize("module", ["os", "jax.numpy", "no_such", "no_such.module"])
def test_installed_is_asked_without_importing(module):
    assert absent_topologies.is_installed(module) == (not module.startswith("no_such"))


def test_unknown_targets_are_refused(arguments):
    with pytest.raises(ValueError, match=r"`target=` must be one of.*Got 'abacus'"):
        coop_jax.fit(mlp_step, *arguments, target="abacus")
    with pytest.raises(TypeError, match=r"`target=` must be a name.*Got 3 of type int"):
        coop_jax.remat_train_step(mlp_step, budget="60%").plan(*arguments, target=3)


@pytest.mark.parametrize("entry", ["fit", "plan", "compare"])
def test_a_target_other_than_the_mesh_is_refused(arguments, entry):
    mesh = targets.mesh("cpu x4", {"x": 4})
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.ShapeDtypeStruct(arguments[1].shape, "float32", sharding=spread)
    call = {
        "fit": lambda **given: coop_jax.fit(mlp_step, *given.pop("args"), **given),
        "plan": lambda **given: coop_jax.remat_train_step(mlp_step, **SIXTY).plan(
            *given.pop("args"), **given
        ),
        "compare": lambda **given: coop_jax.compare(
            lambda wrap: mlp_step, *given.pop("args"), **given
        ),
    }[entry]
    with pytest.raises(ValueError, match="the device of the mesh") as caught:
        call(args=(arguments[0], x), target="h200")
    text = str(caught.value)
    assert "`target=` must be the device of the mesh that sharded arguments lie on" in text
    assert "Got 'h200' and arguments over 4 devices of 'cpu'" in text
    assert "Leave `target=` out" in text


def test_a_planned_step_is_refused(arguments):
    step = coop_jax.remat_train_step(mlp_step, **SIXTY)
    with pytest.raises(TypeError, match=r"must be given the step as written.*`\.plan"):
        coop_jax.fit(step, *arguments, target="cpu")


def test_fit_on_cpu_and_its_report(arguments):
    plan = coop_jax.fit(mlp_step, *arguments, target="cpu", **SIXTY)
    assert plan.target == "cpu"
    assert plan.target_bytes is None
    assert plan.measured_bytes <= plan.budget_bytes
    assert str(plan).startswith("coop_jax plan for cpu\n")
    same = coop_jax.remat_train_step(mlp_step, **SIXTY).plan(*arguments, target="cpu")
    assert same.measured_bytes == plan.measured_bytes


def test_fit_wants_bytes_where_no_memory_is_reported(arguments):
    with pytest.raises(ValueError, match=r"Give the budget in bytes"):
        coop_jax.fit(mlp_step, *arguments, target="cpu")


def test_static_keyword_and_weak_arguments(arguments):
    def step(weights, x, scale, *, mode):
        new, value = mlp_step(weights, x)
        return new, value * scale if mode == "scaled" else value

    plan = coop_jax.fit(
        step,
        *arguments,
        2.0,
        mode="scaled",
        target="cpu",
        **SIXTY,
        static_argnames="mode",
    )
    assert plan.measured_bytes <= plan.budget_bytes


def test_a_steps_own_argument_called_target_stays_its_own(arguments):
    def step(weights, x, target):
        return mlp_step(weights, x - target)

    planned = coop_jax.remat_train_step(step, **SIXTY)
    plan = planned.plan(*arguments, target=jnp.zeros_like(arguments[1]))
    assert plan.measured_bytes <= plan.budget_bytes
    assert planned.plan_for("cpu", (*arguments, arguments[1]), {}).target == "cpu"


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        ("HLO temporaries (22.04G) exceeds available HBM (15.75G)", 22.04 * 2**30),
        ("memory space hbm. Used 17.5M of 15.75G hbm. Exceeded", 17.5 * 2**20),
    ],
)
def test_what_xla_refuses_is_measured_by_its_message(message, needed):
    def refuse():
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {message}")

    compiled, total = memory_figures.compile_measured(refuse)
    assert compiled is None
    assert total == int(needed)


def test_other_errors_of_the_compiler_are_passed_on():
    def fail():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        memory_figures.compile_measured(fail)


def test_a_step_that_xla_refuses_to_compile_as_written(arguments, monkeypatch):
    """As on a TPU, which compiles nothing that exceeds its memory."""
    needed = coop_jax.fit(mlp_step, *arguments, budget="100%").unmodified_bytes

    def refuse_above(limit):
        def compile_measured(compile_step):
            compiled, total = memory_figures.compile_measured(compile_step)
            return (compiled if total <= limit else None), total

        monkeypatch.setattr(as_written, "compile_measured", compile_measured)
        monkeypatch.setattr(problem, "compile_measured", compile_measured)

    refuse_above(0.8 * needed)
    options = {"budget": int(0.75 * needed), "planner": "lookahead"}
    plan = coop_jax.fit(mlp_step, *arguments, **options)
    assert plan.measured_bytes <= plan.budget_bytes
    assert plan.unmodified_bytes == needed
    refuse_above(0)
    with pytest.raises(coop_jax.InfeasibleBudgetError, match="by prediction"):
        coop_jax.fit(mlp_step, *arguments, **options)


@pytest.mark.parametrize("name", GPUS)
def test_device_descriptions_are_shipped(name):
    folder = pathlib.Path(coop_jax.__file__).parent / "xla/target_configs"
    text = (folder / f"{name}.txtpb").read_text()
    assert f"device_memory_size: {targets.named(name).memory_bytes}" in text


@NEEDS_CUDA
@pytest.mark.parametrize("name", GPUS)
def test_gpus_compile(arguments, name):
    plan = coop_jax.fit(mlp_step, *arguments, target=name, donate_argnums=0)
    assert plan.is_unmodified
    assert plan.target == name
    assert plan.budget_bytes == int(0.95 * targets.named(name).memory_bytes)
    assert f"plan for {name} (" in str(plan)


@NEEDS_CUDA
@pytest.mark.parametrize("by_cublas", [True, False])
def test_products_of_an_absent_gpu_are_of_the_library_that_is_asked_for(by_cublas):
    """If nothing is asked for, they are Triton's, which nothing tuned."""
    options = {"xla_gpu_enable_triton_gemm": False} if by_cublas else None
    device = absent_devices.named_device("h200")
    args = absent_devices.placed(mlp_arguments(batch=2**14, width=256), device)
    step = coop_jax.remat_train_step(mlp_step, budget="75%", compiler_options=options)
    plan = step.plan(*args, target="h200")
    assert plan.measured_bytes <= plan.budget_bytes < plan.unmodified_bytes
    compiled = step.lower(*args).compile()
    assert memory_figures.memory_figures(compiled).total_bytes == plan.measured_bytes
    assert ("__cublas" in compiled.as_text()) == by_cublas


@NEEDS_TPU
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpu v4", "tpu v5e", "tpu v5p", "tpu v6e"])
def test_tpus_compile(arguments, name):
    plan = coop_jax.fit(mlp_step, *arguments, target=name, donate_argnums=0)
    assert plan.is_unmodified
    assert plan.target == name


@NEEDS_CUDA
@pytest.mark.slow
def test_a_transformer_fits_in_part_of_its_memory_on_an_h200():
    shapes, step = transformer(num_layers=2, width=64, num_heads=2, batch_size=16)
    plan = coop_jax.fit(step, *shapes, target="h200", budget="60%", donate_argnums=0)
    assert plan.measured_bytes <= plan.budget_bytes == int(0.6 * plan.unmodified_bytes)
    assert plan.recomputed_flops > 0


@NEEDS_TPU
@pytest.mark.slow
def test_a_step_fits_in_part_of_its_memory_on_a_tpu():
    # Activations of 64 MiB: of smaller ones the chip's vector memory holds most.
    shapes = jax.eval_shape(lambda: mlp_arguments(layers=8, batch=65536, width=256))
    plan = coop_jax.fit(mlp_step, *shapes, target="v5e", budget="80%", donate_argnums=0)
    assert plan.measured_bytes <= plan.budget_bytes == int(0.8 * plan.unmodified_bytes)
    assert plan.recomputed_flops > 0


@NEEDS_CUDA
@pytest.mark.parametrize("first", ["jax.devices()", "None"])
def test_gpu_targets_need_no_environment_variable(first):
    """Without a driver, the plugin does not register unless JAX_PLATFORMS says cpu."""
    program = f"""
import jax
{first}
from coop_jax.xla import absent_devices
device = absent_devices.named_device("h200")
shape = jax.ShapeDtypeStruct((8, 8), "float32")
jax.jit(lambda a: a @ a).lower(absent_devices.placed(shape, device)).compile()
print(jax.numpy.ones(3).sum(), device.device_kind)
"""
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("3.0 NVIDIA H200"), done.stderr
