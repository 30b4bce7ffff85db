"""Steps of Equinox: arrays and other things in one pytree."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from steps import LITTLE_CODE, largest_difference

from coop_jax import remat_train_step

BATCH, WIDTH = 512, 32
ADAM = optax.adam(1e-3)


def made(key=0):
    model = eqx.nn.MLP(
        WIDTH, WIDTH, WIDTH, 5, activation=jax.nn.relu, key=jax.random.key(key)
    )
    return model, ADAM.init(eqx.filter(model, eqx.is_array))


def batch():
    return jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, WIDTH)), "float32")


def train_step(model, state, x):
    def loss_fn(model):
        return jnp.mean((jax.vmap(model)(x) - x) ** 2)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, state = ADAM.update(grads, state, eqx.filter(model, eqx.is_array))
    return eqx.apply_updates(model, updates), state, loss


def planned_of(step, budget="70%", compiler_options=LITTLE_CODE, **options):
    options |= {"planner": "lookahead", "compiler_options": compiler_options}
    return remat_train_step(step, budget=budget, **options)


def planned_of_jitted(step, **options):
    """A jitted step keeps its options, and takes none beside them."""
    return planned_of(eqx.filter_jit(step, **options), compiler_options=None)


def assert_alike(expected, found):
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    both = [eqx.filter(tree, eqx.is_array) for tree in (expected, found)]
    assert largest_difference(*both) < 1e-5


@pytest.mark.parametrize(
    "wrap",
    [
        planned_of,
        planned_of_jitted,
        lambda step: remat_train_step(step, budget="1TiB"),
        lambda step: planned_of(step, donate_argnums=(0, 1)),
        lambda step: planned_of_jitted(step, donate="all-except-first"),
    ],
    ids=["plain", "filter_jit", "that fits", "donated", "filter_jit with donation"],
)
def test_steps_are_run_as_by_filter_jit(wrap):
    model, state = made()
    expected = eqx.filter_jit(train_step)(model, state, batch())
    step = wrap(train_step)
    is_planned = not step.plan(model, state, batch()).is_unmodified
    assert is_planned == (step.budget != "1TiB")
    found = step(model, state, batch())
    assert_alike(expected, found)
    assert found[0].activation is model.activation
    step(*found[:2], batch())
    assert repr(step).endswith("1 planned)")


def test_donation_is_that_of_the_options():
    model, state = made()
    x = batch()
    planned_of(train_step, donate_argnums=(0, 1))(model, state, x)
    assert model.layers[0].weight.is_deleted()
    assert jax.tree.leaves(state)[-1].is_deleted()
    assert not x.is_deleted()
    model, state = made()
    planned_of_jitted(train_step, donate="all-except-first")(model, state, x)
    assert not model.layers[0].weight.is_deleted()
    assert jax.tree.leaves(state)[-1].is_deleted()


def test_what_is_no_array_is_static_in_arguments_and_results():
    def step(model, state, x, scale, mode="plain"):
        model, state, loss = train_step(model, state, x)
        return model, state, {"loss": loss * scale, "mode": mode, "scale": scale}

    model, state = made()
    planned = planned_of(step)
    for scale, mode in ((1.0, "plain"), (2.0, "other")):
        expected = eqx.filter_jit(step)(model, state, batch(), scale, mode=mode)
        found = planned(model, state, batch(), scale, mode=mode)
        assert_alike(expected, found)
        assert (found[2]["mode"], found[2]["scale"]) == (mode, scale)
        assert isinstance(found[2]["scale"], float)
    assert repr(planned).endswith("2 planned)")  # a float is static


@pytest.mark.parametrize("option", [{"static_argnums": 1}, {"static_argnames": "static"}])
@pytest.mark.parametrize("is_by_name", [False, True])
def test_the_static_part_of_a_module_may_be_a_static_argument(option, is_by_name):
    parameters, rest = eqx.partition(made()[0], eqx.is_inexact_array)

    def step(parameters, static, x):
        def loss(parameters):
            return jnp.mean(jax.vmap(eqx.combine(parameters, static))(x) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, grads), value

    planned = planned_of(step, **option)
    expected = jax.jit(step, **option)(parameters, rest, batch())
    if is_by_name:
        found = planned(parameters, static=rest, x=batch())
    else:
        found = planned(parameters, rest, batch())
    assert_alike(expected, found)


def test_keys_and_state_by_name():
    class Noisy(eqx.Module):
        mlp: eqx.nn.MLP
        dropout: eqx.nn.Dropout

        def __call__(self, x, key):
            return self.dropout(self.mlp(x), key=key)

    model, _ = made()
    noisy = Noisy(model, eqx.nn.Dropout(0.2))

    def step(*, model, x, key):
        def loss_fn(model):
            y = jax.vmap(model, (0, None))(x, key)
            return jnp.mean((y - x) ** 2)

        loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads)), loss

    arguments = {"model": noisy, "x": batch(), "key": jax.random.key(3)}
    expected = eqx.filter_jit(step)(**arguments)
    planned = planned_of(step, "90%", donate_argnames="model")
    assert_alike(expected, planned(**arguments))
    assert noisy.mlp.layers[0].weight.is_deleted()


def test_inside_of_filter_jit_and_check():
    model, state = made()
    step = planned_of(train_step)
    expected = eqx.filter_jit(train_step)(model, state, batch())
    assert_alike(expected, eqx.filter_jit(lambda *args: step(*args))(model, state, batch()))
    assert step.check(model, state, batch()).largest_relative < 1e-3


@pytest.mark.parametrize(
    "jit",
    [
        lambda step: step,
        eqx.filter_jit,
        functools.partial(eqx.filter_jit, donate="all-except-first"),
    ],
    ids=["plain", "filter_jit", "donating"],
)
def test_check_names_results_by_their_paths(jit):
    model, state = made()
    results = train_step(model, state, batch())
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(results, eqx.is_array))
    check = remat_train_step(jit(train_step), budget="100%").check(model, state, batch())
    assert {d.path: d.shape for d in check.differences} == {
        jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves
    }


def test_shapes_are_enough_to_plan():
    model, state = eqx.filter_eval_shape(made)
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), "float32")
    step = planned_of(train_step)
    plan = step.plan(model, state, x)
    assert plan is step.plan(*made(), batch())


def test_eval_shape_plans_nothing():
    for step in (planned_of(train_step), planned_of(eqx.filter_jit(train_step))):
        assert step.eval_shape(*made(), batch())[2].shape == ()
        assert repr(step).endswith("0 planned)")
