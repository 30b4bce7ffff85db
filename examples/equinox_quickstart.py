"""Equinox quickstart: a step on modules with arrays and functions in one pytree.

python examples/equinox_quickstart.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import coop_jax

optimizer = optax.adam(3e-4)


@coop_jax.remat_train_step(budget="60%", donate_argnums=(0, 1))  # in place of filter_jit
def train_step(model, state, x, y, key):
    def loss_fn(model):
        keys = jax.random.split(key, len(x))
        return jnp.mean((jax.vmap(model)(x, key=keys) - y) ** 2)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, state = optimizer.update(grads, state, params)
    return eqx.apply_updates(model, updates), state, loss


def make_model(key, width=64, depth=6):
    layers = []
    for use in jax.random.split(key, depth):
        up, down = jax.random.split(use)
        layers += [
            eqx.nn.Linear(width, 4 * width, key=up),
            eqx.nn.Lambda(jax.nn.gelu),
            eqx.nn.Dropout(0.1),
            eqx.nn.Linear(4 * width, width, key=down),
        ]
    return eqx.nn.Sequential(layers)


model_key, data_key, key = jax.random.split(jax.random.key(0), 3)
model = make_model(model_key)
state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
x = jax.random.normal(data_key, (1024, 64))
batch = x, jnp.roll(x, 1, axis=-1)

print(train_step.plan(model, state, *batch, key))
print(train_step.check(model, state, *batch, key))
for epoch in range(5):
    for _ in range(20):
        key, use = jax.random.split(key)
        model, state, loss = train_step(model, state, *batch, use)
    print(f"epoch {epoch}: loss {loss:.4f}")
