"""XLA's own rematerialization: switched off by `budget="no-xla-remat"`."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_CUDA, NEEDS_TPU, assert_trees_equal, mlp_arguments, mlp_step
from xla_remat import rematerialized

from coop_jax import backends, compare, fit, remat_train_step
from coop_jax.api.budgeted_jit import BudgetedJit, Settings
from coop_jax.compile import traced_step
from coop_jax.compile.traced_step import TracedStep
from coop_jax.xla.memory_figures import memory_figures

DISABLED = "xla_disable_hlo_passes"
LEAST = "xla_tpu_rematerialization_min_size_in_bytes"
GIB = 2**30


@pytest.mark.parametrize(
    ("platform", "given", "wanted"),
    [
        ("gpu", None, {DISABLED: "rematerialization"}),
        ("gpu", {DISABLED: "cse"}, {DISABLED: "cse,rematerialization"}),
        ("gpu", {"a": 1}, {"a": 1, DISABLED: "rematerialization"}),
        ("tpu", {LEAST: 7, "a": 1}, {LEAST: 1 << 40, "a": 1}),
        ("cpu", {"a": 1}, {"a": 1}),  # XLA:CPU has none.
    ],
)
def test_the_options_of_a_backend(monkeypatch, platform, given, wanted):
    backend = backends.named(platform)
    monkeypatch.setattr(traced_step, "backend_of", lambda device: backend)
    jitted = jax.jit(mlp_step, compiler_options=given)

    def options(**how):
        step = TracedStep.of(jitted, mlp_arguments(), {}, **how)
        return step.jit_options.get("compiler_options") or {}

    assert wanted.items() <= options(xla_rematerializes=False).items()
    for name, value in options().items():
        assert name not in (DISABLED, LEAST) or (given or {}).get(name) == value


def test_it_needs_a_device_that_reports_its_memory():
    step = remat_train_step(mlp_step, budget=" No-XLA-remat")
    assert step.budget == "no-xla-remat"
    with pytest.raises(
        ValueError,
        match=r'`remat_train_step\(budget="no-xla-remat"\)` needs a device that reports '
        r"its memory limit; .* does not. Give the budget in bytes",
    ):
        step(*mlp_arguments())


def test_policies_are_compared_with_the_same_options():
    with pytest.raises(
        ValueError,
        match=r"`compare\(budgets=...\)` are kept by steps with the same options of XLA as "
        r"the policies .*Got 'no-xla-remat', which changes them: give \"device\", or use "
        r"`fit`",
    ):
        compare(lambda wrap: mlp_step, *mlp_arguments(), budgets=["no-xla-remat"])


def test_inside_of_a_transformation_nothing_is_verified(monkeypatch):
    """There the options are those of the outer `jit`."""
    monkeypatch.setattr("coop_jax.base.budget.memory_bytes", lambda device: 2**34)
    step = remat_train_step(mlp_step, budget="no-xla-remat")
    args = mlp_arguments()
    assert_trees_equal(jax.jit(lambda *a: step(*a))(*args), jax.jit(mlp_step)(*args))


def deep(activation_bytes, num_layers=8, width=4096):
    """A step that keeps so many bytes of activations, and its arguments."""
    batch = int(activation_bytes / num_layers / width / 4)

    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.sum(h**2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((width, width), "float32")] * num_layers
    return step, (weights, jax.ShapeDtypeStruct((batch, width), "float32"))


def compiled_for(target, budget, step, args):
    settings = Settings(budget)
    jitted = BudgetedJit(jax.jit(step, donate_argnums=0), settings)
    args, kwargs = jitted._placed(target, args, {})
    return jitted.fitted(args, kwargs)


@NEEDS_CUDA
@pytest.mark.parametrize("activation_gib", [105, pytest.param(135, marks=pytest.mark.slow)])
def test_an_absent_gpu(activation_gib):
    """The step fits as written below the device's memory, and so it stays; of one that does
    not, only the plan recomputes."""
    step, args = deep(activation_gib * GIB)
    by_xla = compiled_for("h200", "device", step, args)
    assert by_xla.plan.is_unmodified
    assert rematerialized(by_xla.compiled) >= 2
    ours = compiled_for("h200", "no-xla-remat", step, args)
    assert rematerialized(ours.compiled) == 0
    assert ours.plan.is_unmodified == (activation_gib == 105)
    assert ours.plan.measured_bytes <= ours.plan.budget_bytes
    assert ours.plan.unmodified_bytes > 1.2 * by_xla.plan.unmodified_bytes
    assert memory_figures(ours.compiled).total_bytes == ours.plan.measured_bytes


@NEEDS_TPU
def test_an_absent_tpu():
    step, args = deep(14.5 * GIB)
    options = {"target": "tpu v5e", "donate_argnums": 0}
    by_xla = fit(step, *args, budget="device", **options)
    ours = fit(step, *args, budget="no-xla-remat", **options)
    assert by_xla.is_unmodified
    assert not ours.is_unmodified
    # As written it does not fit without what XLA makes again.
    assert by_xla.measured_bytes < 14 * GIB < 16 * GIB < ours.unmodified_bytes
    assert ours.measured_bytes <= ours.budget_bytes
