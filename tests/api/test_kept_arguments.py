"""A planned step keeps no array of the calls that it was planned for."""

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from steps import QUICK

import coop_jax

LAYERS, WIDTH, ROWS = 6, 64, 2048


def unrolled(weights, x):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def scanned(weights, x):
    x, _ = lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)
    return jnp.mean(x**2)


def trained(loss, weights, x, scale=1.0):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - scale * 0.1 * g, weights, gradients), value


def arguments(make=jnp.asarray):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
    return make(weights), make(rng.normal(size=(ROWS, WIDTH)).astype(np.float32))


def on_device(array):
    return jax.device_put(array, jax.devices()[0])


def are_gone(references):
    gc.collect()
    return [reference() is None for reference in references]


@pytest.mark.parametrize("loss", [unrolled, scanned])
@pytest.mark.parametrize("make", [jnp.asarray, on_device, np.array])
@pytest.mark.parametrize("options", [{}, {"donate_argnums": 0}], ids=["kept", "donated"])
def test_arguments_of_the_first_call_are_freed(loss, make, options):
    fn = functools.partial(trained, loss)
    step = coop_jax.remat_train_step(fn, budget="75%", planner=QUICK, **options)
    given = arguments(make)
    state, _ = step(*given)
    references = [weakref.ref(array) for array in given]
    del given
    assert all(are_gone(references))
    # The plan serves the next call as well.
    step(state, arguments(make)[1])
    assert step.plan(state, arguments(make)[1]) is not None


def test_arguments_by_name_of_plans_and_of_refusals_are_freed():
    step = coop_jax.remat_train_step(
        functools.partial(trained, unrolled),
        budget="75%",
        planner=QUICK,
        static_argnames="scale",
    )
    weights, x = arguments()
    plan = step.plan(weights, x=x, scale=2.0)
    tight = coop_jax.remat_train_step(functools.partial(trained, scanned), budget=4096)
    with pytest.raises(coop_jax.InfeasibleBudgetError) as raised:
        tight.plan(weights, x)
    error = raised.value
    references = [weakref.ref(weights), weakref.ref(x)]
    # The frames that the error passed hold the arguments of the call, as of any error.
    del weights, x, raised
    error.__traceback__ = None
    assert all(are_gone(references))
    assert plan.num_compilations > 1
    assert error.smallest_bytes > 4096


@pytest.mark.parametrize("placement", ["xla", "arena"])
def test_keys_and_optimizers_are_freed(placement):
    optimizer = optax.adam(1e-3)

    def fn(state, key, x):
        weights, moments = state
        noise = jax.random.normal(key, x.shape)
        value, gradients = jax.value_and_grad(unrolled)(weights, x + noise)
        updates, moments = optimizer.update(gradients, moments)
        return (optax.apply_updates(weights, updates), moments), value

    step = coop_jax.remat_train_step(
        fn, budget="75%", planner=QUICK, placement=placement, donate_argnums=0
    )
    weights, x = arguments()
    key = jax.random.key(0)
    step((weights, optimizer.init(weights)), key, x)
    references = [weakref.ref(array) for array in (weights, key, x)]
    del weights, key, x
    assert all(are_gone(references))


def test_a_step_of_a_neural_network_is_freed():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def fn(model, optimizer, x):
        def loss(model):
            h = x
            for _ in range(LAYERS):
                h = jnp.tanh(model(h))
            return jnp.mean(h**2)

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    step = coop_jax.remat_train_step(fn, budget="75%", planner=QUICK)
    x = arguments()[1]
    kernel = weakref.ref(model.kernel.get_value())
    step(model, optimizer, x)
    batch = weakref.ref(x)
    del x
    assert all(are_gone([kernel, batch]))
