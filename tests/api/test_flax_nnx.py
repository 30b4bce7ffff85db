"""Steps of Flax NNX: modules, optimizers, metrics and `Rngs` updated in place."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from steps import LITTLE_CODE, assert_trees_equal, largest_difference

import coop_jax
from coop_jax import remat_train_step
from coop_jax.xla.memory_figures import memory_figures

BATCH, WIDTH = 512, 32


class Network(nnx.Module):
    """With dropout, batch statistics, a shared layer and a variable of its own kind."""

    def __init__(self, rngs):
        self.layers = nnx.List(nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(2))
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.last = self.layers[0]
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        for layer in (*self.layers, self.last):
            x = x + jnp.tanh(layer(x))
        return self.norm(self.dropout(x))


def made():
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    return model, optimizer, nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


def batch():
    return jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, WIDTH)), "float32")


def loss_fn(model, x):
    return jnp.mean((model(x) - x) ** 2)


def train_step(model, optimizer, metrics, x):
    loss, grads = nnx.value_and_grad(loss_fn)(model, x)
    optimizer.update(model, grads)
    metrics.update(loss=loss)
    return loss


def planned_of(step, compiler_options=LITTLE_CODE, **options):
    options |= {"planner": "lookahead", "compiler_options": compiler_options}
    return remat_train_step(step, budget="70%", **options)


def planned_of_jitted(step, **options):
    """A jitted step keeps its options, and takes none beside them."""
    return planned_of(nnx.jit(step, **options), compiler_options=None)


def trained(step, objects, count=3):
    losses = [step(*objects, batch()) for _ in range(count)]
    return [float(loss) for loss in losses if loss is not None], nnx.state(objects)


@functools.cache
def trained_by_nnx_jit():
    """What `train_step` comes to as it is; read only."""
    return trained(nnx.jit(train_step), made())


def assert_trained_alike(expected, found):
    assert expected[0] == pytest.approx(found[0], rel=1e-5)
    assert jax.tree.structure(expected[1]) == jax.tree.structure(found[1])
    assert largest_difference(_raw(expected[1]), _raw(found[1])) < 1e-4


def _raw(state):
    return [
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in jax.tree.leaves(state)
    ]


@pytest.mark.parametrize(
    "wrap",
    [
        planned_of,
        pytest.param(planned_of_jitted, marks=pytest.mark.slow),
        lambda step: planned_of_jitted(step, donate_argnums=(0, 1, 2)),
        lambda step: remat_train_step(step, budget="1TiB", compiler_options=LITTLE_CODE),
        pytest.param(
            lambda step: remat_train_step(budget="70%", planner="lookahead")(step),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["plain", "nnx.jit", "nnx.jit with donation", "that fits", "decorator"],
)
def test_objects_are_updated_in_place_as_by_nnx_jit(wrap):
    expected = trained_by_nnx_jit()
    objects = made()
    step = wrap(train_step)
    is_planned = not step.plan(*objects, batch()).is_unmodified
    assert is_planned == (step.budget != "1TiB")
    assert_trained_alike(expected, trained(step, objects))
    model, _, metrics = objects
    assert model.calls[...] == 3
    assert model.last is model.layers[0]
    assert metrics.compute()["loss"] == pytest.approx(np.mean(expected[0]), rel=1e-5)
    assert repr(step).endswith("1 planned)")


def test_a_step_without_results_trains():
    def step(model, optimizer, metrics, x):
        train_step(model, optimizer, metrics, x)

    objects = made()
    losses, state = trained(planned_of(step), objects)
    assert losses == []
    assert_trained_alike(([], trained_by_nnx_jit()[1]), (losses, state))
    assert objects[0].calls[...] == 3


def test_what_is_updated_is_donated_without_being_asked():
    model, optimizer, metrics = made()
    kept = planned_of(train_step, donate_argnums=())
    weights = model.layers[0].kernel[...]
    kept(model, optimizer, metrics, batch())
    assert not weights.is_deleted()
    step = planned_of(train_step)
    weights, x = model.layers[0].kernel[...], batch()
    step(model, optimizer, metrics, x)
    assert weights.is_deleted()
    assert not x.is_deleted()
    figures = step.lower(model, optimizer, metrics, x).compile().memory_analysis()
    assert figures.alias_size_in_bytes > 3 * 2 * WIDTH * WIDTH * 4  # weights and moments


def test_arrays_that_two_objects_share_are_not_donated_twice():
    model = Network(nnx.Rngs(0))
    average = Network(nnx.Rngs(1))
    nnx.update(average, nnx.state(model))  # the same arrays
    assert average.layers[0].kernel[...] is model.layers[0].kernel[...]

    def step(model, average, x):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))
        moved = jax.tree.map(
            lambda a, p: 0.9 * a + 0.1 * p,
            nnx.state(average, nnx.Param),
            nnx.state(model, nnx.Param),
        )
        nnx.update(average, moved)
        return loss

    planned = planned_of(step)
    assert planned(model, average, batch()) > planned(model, average, batch())


@pytest.mark.slow
def test_objects_by_name_in_containers_and_static_arguments():
    def step(state, *, metrics, batch, name="loss"):
        model, optimizer = state["model"], state["optimizer"]
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        optimizer.update(model, grads)
        metrics.update(loss=loss)
        return {name: loss}

    def run(wrap):
        model, optimizer, metrics = made()
        state = {"model": model, "optimizer": optimizer}
        jitted = wrap(step)
        losses = [
            jitted(state, metrics=metrics, batch=batch(), name=name)[name]
            for name in ("loss", "other")
        ]
        return [float(x) for x in losses], nnx.state((model, optimizer, metrics))

    expected = run(lambda f: nnx.jit(f, static_argnames="name"))
    assert_trained_alike(expected, run(lambda f: planned_of(f, static_argnames="name")))


def test_a_bound_method_of_a_trainer():
    class Trainer:
        rate = 0.1

        def step(self, model, optimizer, metrics, x):
            return train_step(model, optimizer, metrics, x) * self.rate

    expected = trained(nnx.jit(lambda *args: Trainer().step(*args)), made())
    assert_trained_alike(expected, trained(planned_of(Trainer().step), made()))


def test_new_state_that_a_step_makes_is_seen_outside():
    class Growing(nnx.Module):
        def __init__(self, rngs):
            self.inner = Network(rngs)

        def __call__(self, x):
            y = self.inner(x)
            self.largest = nnx.Variable(jnp.max(y, axis=0))
            return y

    def step(model, x):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads))
        model.largest = nnx.Variable(loss)
        return loss

    seen = []
    for wrap in (nnx.jit, planned_of):
        model = Growing(nnx.Rngs(0))
        wrap(step)(model, batch())
        assert model.largest[...].shape == ()
        seen.append(nnx.state(model))
    assert jax.tree.structure(seen[0]) == jax.tree.structure(seen[1])
    assert largest_difference(_raw(seen[0]), _raw(seen[1])) < 1e-4


def test_inside_of_another_nnx_jit():
    @nnx.jit
    def outer(model, optimizer, metrics, x):
        return planned_of(train_step)(model, optimizer, metrics, x)

    expected = trained_by_nnx_jit()
    assert_trained_alike(expected, trained(outer, made()))


@pytest.mark.slow
def test_abstract_objects_are_enough_to_plan():
    def on_shapes():
        return nnx.eval_shape(made)

    step = planned_of(train_step)
    objects = made()
    plan = step.plan(*objects, batch())
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    assert (
        planned_of(train_step).plan(*on_shapes(), x).measured_bytes == plan.measured_bytes
    )
    fitted = coop_jax.fit(train_step, *on_shapes(), x, budget="1TiB", target="cpu")
    assert fitted.is_unmodified


def test_check_leaves_the_objects_alone():
    objects = made()
    before = jax.tree.map(lambda x: x.copy(), nnx.state(objects))
    check = planned_of(train_step).check(*objects, batch())
    assert check.largest_relative < 1e-3
    assert len(check.differences) > 20
    assert_trees_equal(_raw(before), _raw(nnx.state(objects)))


@pytest.mark.parametrize("jit", [lambda step: step, nnx.jit], ids=["plain", "nnx.jit"])
def test_check_names_results_as_the_caller_sees_them(jit):
    """What two objects share is of the first."""

    def step(models, *, optimizer, x):
        loss, grads = nnx.value_and_grad(loss_fn)(models["a"], x)
        optimizer.update(models["a"], grads)
        return {"loss": loss + models["b"][0](x).mean()}

    (model, optimizer, _), other = made(), Network(nnx.Rngs(1))
    other.norm = model.norm
    args, kwargs = ({"a": model, "b": (other,)},), {"optimizer": optimizer, "x": batch()}
    check = remat_train_step(jit(step), budget="100%").check(*args, **kwargs)
    types = {d.path: (d.shape, d.dtype) for d in check.differences}
    assert len(types) == len(check.differences)
    expected = {"result['loss']": ((), "float32")}
    for place, node in (
        ("args[0]['a']", model),
        ("args[0]['b'][0]", other),
        ("kwargs['optimizer']", optimizer),
    ):
        for path, variable in nnx.to_flat_state(nnx.state(node)):
            value = variable[...]
            steps = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            expected[place + "".join(steps)] = value.shape, str(value.dtype)
    shared = {name for name in expected if name.startswith("args[0]['b'][0].norm")}
    assert shared
    assert types == {k: v for k, v in expected.items() if k not in shared}


def test_one_plan_serves_all_calls():
    step, objects = planned_of(train_step), made()
    for _ in range(3):
        step(*objects, batch())
    assert repr(step).endswith("1 planned)")


def test_references_of_jax_are_left_to_jax():
    count = jax.new_ref(jnp.zeros(())) if hasattr(jax, "new_ref") else None
    assert count is not None

    def step(weights, x, count):
        count[...] += 1
        return [w + jnp.mean(x) for w in weights]

    planned = remat_train_step(step, budget="1TiB")
    planned([jnp.ones(3)], batch(), count)
    assert count[...] == 1
    assert "1 planned" in repr(planned)


def test_eval_shape_plans_nothing():
    step = planned_of(train_step)
    assert step.eval_shape(*made(), batch()).shape == ()
    assert repr(step).endswith("0 planned)")


def test_compare_refuses_objects():
    with pytest.raises(TypeError, match=r"pure functions of.*Flax NNX.*from `nnx\.split`"):
        coop_jax.compare(lambda wrap: train_step, *made(), batch())


def test_a_state_is_a_pytree_as_for_jit():
    """`nnx.jit` would return every variable of it beside the results."""
    model = nnx.Linear(16, 16, rngs=nnx.Rngs(0))
    graph, weights = nnx.split(model)

    def step(weights, x):
        def loss(weights):
            return jnp.mean(nnx.merge(graph, weights)(x) ** 2)

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    x = jnp.ones((64, 16))
    planned = coop_jax.remat_train_step(step, budget="100%", donate_argnums=0)
    compiled = jax.jit(step, donate_argnums=0).lower(weights, x).compile()
    assert planned.plan(weights, x).unmodified_bytes == memory_figures(compiled).total_bytes
    assert isinstance(planned(weights, x), nnx.State)
