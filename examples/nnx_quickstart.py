"""Flax NNX quickstart: a step as NNX users write it, in 60 % of its memory.

python examples/nnx_quickstart.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import coop_jax


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm(x)))))


class Model(nnx.Module):
    def __init__(self, width, depth, rngs):
        self.blocks = nnx.List(Block(width, rngs) for _ in range(depth))

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@coop_jax.remat_train_step(budget="60%")  # in place of @nnx.jit
def train_step(model, optimizer, metrics, x, y):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    metrics.update(loss=loss)


model = Model(width=64, depth=6, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(3e-4), wrt=nnx.Param)
metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
x = jax.random.normal(jax.random.key(0), (1024, 64))
batch = x, jnp.roll(x, 1, axis=-1)

print(train_step.plan(model, optimizer, metrics, *batch))
print(train_step.check(model, optimizer, metrics, *batch))
for epoch in range(5):
    for _ in range(20):
        train_step(model, optimizer, metrics, *batch)  # all three updated in place
    print(f"epoch {epoch}: loss {metrics.compute()['loss']:.4f}")
    metrics.reset()
