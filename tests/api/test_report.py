"""The report says what was done and what it costs."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from scanned_steps import branches, descent, normal, scanned
from steps import QUICK, mlp_arguments, mlp_step

import coop_jax
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds

CPU = named("cpu")


@functools.cache
def planned():
    step = coop_jax.remat_train_step(
        mlp_step, budget="60%", planner=QUICK, donate_argnums=0
    )
    return step.plan(*mlp_arguments())


def test_report_of_a_planned_step():
    plan = planned()
    text = str(plan)
    for name in (
        "unmodified",
        "budget",
        "predicted",
        "measured",
        "recomputed",
        "compilations",
    ):
        assert name in text
    assert re.search(r"budget +\S+ \w+ +60\.0%", text)
    assert f"{plan.num_fences} fences" in text
    assert re.search(r"\d+ x \w+ at steps\.py:\d+ \(mlp_step.*\), \S+ FLOPs", text)
    assert sum(item.flops for item in plan.recomputations) == plan.recomputed_flops
    work = [item.flops for item in plan.recomputations]
    assert work == sorted(work, reverse=True)


def test_long_reports_are_cut():
    plan = planned()
    item = plan.recomputations[0]
    longer = dataclasses.replace(plan, recomputations=(item,) * 9)
    assert str(longer).count(" x ") == 5
    assert "and 4 more lines" in str(longer)


STEPS = {
    "a line": lambda: (mlp_step, mlp_arguments()),
    "a loop": lambda: scanned(layers=8),
    "branches": branches,
}


@pytest.mark.parametrize("name", STEPS)
def test_what_was_compiled_and_how_long_it_takes(name, compilations_by_xla):
    """The planner's own time is that of operations before XLA fuses them."""
    step, args = STEPS[name]()
    planned = coop_jax.remat_train_step(step, budget="70%", planner=QUICK)
    plan = planned.plan(*args)
    assert plan.num_compilations == len(compilations_by_xla) > 2
    assert planned.plan(*args) is plan
    assert plan.num_compilations == len(compilations_by_xla)
    executables = planned.lower(*args).compile(), jax.jit(step).lower(*args).compile()
    own, as_written = (executable_seconds(each, CPU) for each in executables)
    assert plan.executable_overhead == pytest.approx(own / as_written, rel=1e-3)
    assert f", executable x{plan.executable_overhead:.3f}, " in str(plan)


def test_bodies_of_loops_that_are_only_read_are_compilations(compilations_by_xla):
    """Before, the report of this step counted six of eight."""
    step, args = scanned(layers=8)
    with pytest.raises(coop_jax.InfeasibleBudgetError) as refused:
        coop_jax.remat_train_step(step, budget=1, planner=QUICK).plan(*args)
    smallest_bytes = refused.value.smallest_bytes
    compilations_by_xla.clear()
    step = coop_jax.remat_train_step(step, budget=smallest_bytes, planner=QUICK)
    assert step.plan(*args).num_compilations == len(compilations_by_xla)


def test_without_executables_the_report_has_the_time_of_the_plan(tmp_path):
    assert planned().executable_overhead is not None
    planned().save(tmp_path / "plan.json")
    options = {"planner": QUICK, "donate_argnums": 0}
    step = coop_jax.remat_train_step(
        mlp_step, budget="60%", plan=tmp_path / "plan.json", **options
    )
    known = step.plan(*mlp_arguments())
    as_written = coop_jax.remat_train_step(mlp_step, budget="100%", **options)
    for plan in (known, as_written.plan(*mlp_arguments())):
        assert plan.executable_overhead is None
        assert "executable x" not in str(plan)
    assert f"modelled time x{known.compute_overhead:.3f}, " in str(known)


def test_values_without_bytes_are_not_kept():
    """What has no bytes is evicted by nobody, and is no news."""

    def loss(weights, x):
        def body(x, w):
            nothing = x[:, :0]
            joined = jnp.concatenate([jnp.sin(x), jnp.sin(nothing)], 1)
            return x + jnp.tanh(joined @ w), None

        return jnp.mean(lax.scan(body, x, weights)[0] ** 2)

    step, args = descent(loss, normal(8, 16, 16), normal(256, 16))
    plan = coop_jax.remat_train_step(step, budget="60%", planner=QUICK).plan(*args)
    kept = [text for loop in plan.loops for part in loop.parts for text in part.kept]
    assert kept
    assert not [text for text in kept if text.startswith("float32[256,0]")]
