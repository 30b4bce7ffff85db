"""A planned step inside of `jit`, `grad`, `vmap`, `jvp`, `checkpoint` and `shard_map`.

Its numbers are those of the step as written, derivative rules of its own included.
"""

from __future__ import annotations

import functools
import random
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from random_programs import random_function
from steps import (
    as_numpy,
    assert_trees_equal,
    largest_difference,
    mlp_arguments,
    mlp_step,
)

import coop_jax
from coop_jax import remat_train_step
from coop_jax.trace.program import all_equations
from coop_jax.xla.memory_figures import memory_figures


@jax.custom_vjp
def straight_through(x):
    return jnp.round(x * 4) / 4


straight_through.defvjp(
    lambda x: (jnp.round(x * 4) / 4, None), lambda _, gradient: (gradient,)
)


@jax.custom_jvp
def kink(x):
    return jnp.maximum(x, 0)


@kink.defjvp
def _kink_jvp(primals, tangents):
    # Not what autodiff would say, nor what `relu` says.
    return kink(*primals), jnp.where(primals[0] > 0, 3.0, 0.25) * tangents[0]


def network(rules, weights, x):
    """A network with derivative rules of its own, and integers among its arguments."""
    for w, rule in zip(weights, rules, strict=True):
        x = x + rule(x @ w)
    return jnp.mean(x**2, axis=0)


FORWARD = kink, jnp.tanh, jax.nn.relu, kink, jax.nn.silu
BACKWARD = kink, straight_through, jax.nn.relu, jnp.tanh, straight_through
BUDGETS = "100%", "70%"


def networks(rules):
    def step(weights, x):
        return network(rules, weights, x)

    weights, x = mlp_arguments(layers=len(rules), batch=128, width=32)
    return step, weights, x


def assert_close(expected, found):
    """Equal but for roundings: ten of them, of the largest value of a result."""
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        scale = max(1.0, float(np.max(np.abs(as_numpy(a).astype("f8")), initial=0)))
        assert largest_difference(a, b) < 1e-5 * scale


def planned_of(step, budget):
    return remat_train_step(step, budget=budget, planner="lookahead")


def total(step):
    return lambda *args: jnp.sum(step(*args))


# A forward pass alone may have nothing to save: then the plan is the tightest.
quietly = pytest.mark.filterwarnings("ignore:A step made by `remat_train_step`")


def of_batches(f):
    return jax.vmap(f, (None, 0))


TRANSFORMATIONS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda w, x: of_batches(f)(w, in_batches(x)),
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1)),
    "grad of one argument": lambda f: jax.grad(total(f)),
    "jit(grad)": lambda f: jax.jit(jax.grad(total(f))),
    "grad(jit)": lambda f: jax.grad(total(jax.jit(f))),
    "grad(checkpoint)": lambda f: jax.grad(total(jax.checkpoint(f))),
    "grad(vmap)": lambda f: jax.grad(lambda w, x: total(of_batches(f))(w, in_batches(x))),
    "vmap(grad)": lambda f: lambda w, x: of_batches(jax.grad(total(f)))(w, in_batches(x)),
    "vjp": lambda f: lambda w, x: jax.vjp(f, w, x)[1](jnp.arange(32.0)),
    "jacrev": lambda f: jax.jacrev(lambda w, x: f(w, x)[:3]),
    "scan": lambda f: (
        lambda w, x: jax.lax.scan(
            lambda c, b: (c + f(w, b), c), jnp.zeros(32), in_batches(x)
        )
    ),
    "cond": lambda f: (
        lambda w, x: jax.jit(lambda p: jax.lax.cond(p, f, lambda w, x: x[0], w, x))(True)
    ),
}
FORWARDS = {
    "jvp": lambda f: lambda w, x: jax.jvp(f, (w, x), (w, x)),
    "jvp of one argument": lambda f: lambda w, x: jax.jvp(lambda x: f(w, x), (x,), (x,)),
    "hessian product": lambda f: (
        lambda w, x: jax.jvp(jax.grad(lambda x: total(f)(w, x)), (x,), (x,))
    ),
}


def in_batches(x):
    return x.reshape(4, -1, x.shape[-1])


@quietly
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("rules", [FORWARD, BACKWARD], ids=["jvp rules", "vjp rules"])
def test_transformed_planned_steps_are_those_as_written(rules, name, budget):
    step, *args = networks(rules)
    transform = TRANSFORMATIONS[name]
    assert_close(transform(step)(*args), transform(planned_of(step, budget))(*args))


@quietly
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", ["jvp", "jvp of one argument", "hessian product"])
def test_forward_derivatives(name, budget):
    step, *args = networks(FORWARD)
    transform = FORWARDS[name]
    assert_close(transform(step)(*args), transform(planned_of(step, budget))(*args))


def with_rules(function, seed):
    """A random program whose floats pass functions with derivative rules of their own."""
    choose = random.Random(seed)
    before, after = (choose.choice([straight_through, kink, jnp.sin]) for _ in range(2))

    def step(floats, integers, flags, key):
        made = function(before(floats), integers, flags, key)
        return {**made, "f": [after(x) for x in made["f"]]}

    return step


@quietly
# Five seconds each: most operations are compiled one by one.
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.hand if seed > 4 else ()) for seed in range(10)],
)
def test_random_programs_under_transformations(seed):
    function, (floats, integers, flags, key) = random_function(seed, 18)
    step = with_rules(function, seed)
    planned = planned_of(step, "60%")

    def summed(f):
        return lambda x: sum(jnp.sum(y) for y in f(x, integers, flags, key)["f"])

    transforms = [
        lambda f: jax.jit(f)(floats, integers, flags, key),
        lambda f: jax.grad(summed(f))(floats),
        lambda f: jax.jit(jax.grad(jax.checkpoint(summed(f))))(floats),
        lambda f: jax.vmap(lambda x: f(x, integers, flags, key))(jnp.stack([floats] * 2)),
        lambda f: jax.vmap(jax.grad(summed(f)))(jnp.stack([floats, -floats])),
    ]
    names = map(str, all_equations(jax.make_jaxpr(step)(floats, integers, flags, key)))
    if not any("custom_vjp" in name for name in names):  # which only go backwards
        transforms.append(lambda f: jax.jvp(summed(f), (floats,), (floats,)))
    for transform in transforms:
        expected, found = transform(step), transform(planned)
        assert_close(expected, found)


@quietly
def test_a_step_that_closes_over_tracers():
    weights, x = mlp_arguments()

    def outer(wrap):
        def of_scale(scale):
            step = wrap(lambda w, x: mlp_step(w, x * scale))
            return step(weights, x)  # no tracer among the arguments

        return of_scale

    planned = outer(lambda f: remat_train_step(f, budget="60%", planner="lookahead"))
    expected = jax.jit(outer(lambda f: f))(2.0)
    assert largest_difference(expected, jax.jit(planned)(2.0)) < 1e-5
    gradient = jax.grad(lambda s: planned(s)[1])(2.0)
    assert gradient == pytest.approx(
        float(jax.grad(lambda s: outer(lambda f: f)(s)[1])(2.0))
    )
    assert jax.vmap(lambda s: planned(s)[1])(jnp.ones(3)).shape == (3,)


@quietly
def test_outside_of_jit_each_kind_is_planned_once(monkeypatch):
    from coop_jax.api import under_transformation

    planned = []
    predict = under_transformation.predict_step
    monkeypatch.setattr(
        under_transformation,
        "predict_step",
        lambda *args: planned.append(args) or predict(*args),
    )
    weights, x = mlp_arguments()
    step = remat_train_step(mlp_step, budget="60%", planner="lookahead")
    for _ in range(3):
        jax.vmap(step, (None, 0))(weights, x.reshape(2, 256, 64))
        jax.grad(lambda x: step(weights, x)[1])(x)
    assert len(planned) == 2  # two shapes


@quietly
def test_under_shard_map_the_step_of_one_device_is_planned():
    weights, x = mlp_arguments()
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

    def step(weights, x):
        new, value = mlp_step(weights, x)
        return jax.tree.map(lambda y: jax.lax.pmean(y, "data"), (new, value))

    def mapped(f):
        return jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
        )

    planned = mapped(remat_train_step(step, budget="60%", planner="lookahead"))
    assert "recompute" in planned.lower(weights, x).as_text(debug_info=True)
    expected = mapped(step)(weights, x)
    assert largest_difference(expected, planned(weights, x)) < 1e-6


@quietly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_under_pmap_the_step_of_one_device_is_planned():
    weights, x = mlp_arguments()

    def step(weights, x):
        new, value = mlp_step(weights, x)
        return jax.lax.pmean(new, "data"), jax.lax.pmean(value, "data")

    args = weights, x.reshape(2, 256, 64)
    options = {"axis_name": "data", "in_axes": (None, 0), "devices": jax.devices()[:2]}
    expected = jax.pmap(step, **options)(*args)
    found = jax.pmap(remat_train_step(step, budget="60%", planner="lookahead"), **options)(
        *args
    )
    assert largest_difference(expected, found) < 1e-6


def test_disable_jit_runs_the_step_as_written():
    weights, x = mlp_arguments(layers=2, batch=8, width=8)
    seen = []

    def step(weights, x):
        seen.append(isinstance(x, jax.core.Tracer))
        return mlp_step(weights, x)

    with jax.disable_jit():
        assert_trees_equal(
            remat_train_step(step, budget="50%")(weights, x), mlp_step(weights, x)
        )
    assert seen == [False]


@pytest.mark.parametrize("budget", ["1TiB", "60%"])
def test_debug_nans_finds_the_operation(budget):
    weights, x = mlp_arguments()
    step = remat_train_step(mlp_step, budget=budget, planner="lookahead")
    with jax.debug_nans(True):
        step(weights, x)
        with pytest.raises(FloatingPointError, match="nan"):
            step(weights, x * jnp.inf)


def test_a_predicted_excess_is_a_warning_where_nothing_can_be_verified():
    step, weights, x = networks(FORWARD)
    with pytest.warns(
        UserWarning, match=r"inside of a transformation.*can only be predicted"
    ):
        jax.jit(remat_train_step(step, budget="70%"))(weights, x)
    with pytest.raises(coop_jax.InfeasibleBudgetError, match="by prediction"):
        jax.jit(remat_train_step(step, budget=1000))(weights, x)


def residual_step(weights, x):
    """Where XLA stores what it is not expected to store: plans by rules do not help."""

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w) + jnp.sin(y)
        return jnp.mean(y**2)

    return jax.value_and_grad(loss)(weights)


def test_a_plan_that_is_not_expected_to_help_is_not_taken():
    weights, x = mlp_arguments(batch=2048)
    as_written = memory_figures(jax.jit(residual_step).lower(weights, x).compile())
    with pytest.warns(UserWarning, match="It stays as written. To have it planned by what"):
        inside = jax.jit(remat_train_step(residual_step, budget="50%")).lower(weights, x)
    assert memory_figures(inside.compile()).total_bytes <= as_written.total_bytes
    # Outside, where XLA shows what it stores, they do.
    assert remat_train_step(residual_step, budget="50%").plan(weights, x).num_fences


@pytest.mark.parametrize("budget", ["1TiB", "60%"])
def test_a_planned_step_can_be_exported(budget):
    weights, x = mlp_arguments()
    step = remat_train_step(mlp_step, budget=budget, planner="lookahead")
    names = "coop_fence", "coop_after", "LayoutConstraint"
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in names]
    exported = export.export(step, disabled_checks=checks)(weights, x)
    assert_trees_equal(jax.jit(exported.call)(weights, x), step(weights, x))
    if budget == "60%":
        with pytest.raises(ValueError, match="no compatibility guarantees"):
            export.export(step)(weights, x)


def test_a_planned_step_inside_of_another_is_planned_with_it():
    """Its own budget is for calls of it alone; no fence of its own is in the way."""
    weights, x = mlp_arguments(batch=2048)
    inner = remat_train_step(residual_step, budget="90%")

    def outer(step, weights, x):
        loss, gradients = step(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), loss

    alone = remat_train_step(functools.partial(outer, residual_step), budget="50%")
    nested = remat_train_step(functools.partial(outer, inner), budget="50%")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = nested.plan(weights, x)
    assert plan.measured_bytes == alone.plan(weights, x).measured_bytes
    assert_trees_equal(nested(weights, x), alone(weights, x))
    assert nested.check(weights, x).largest_relative < 1e-5
    # By itself it keeps its own budget.
    assert inner.plan(weights, x).budget_bytes != plan.budget_bytes
