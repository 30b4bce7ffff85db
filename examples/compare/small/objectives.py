"""Small steps with losses or updates that are not a layer after another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.small.training import (
    Step,
    classified,
    integers,
    mean_square,
    normal,
    perceptron,
    trained,
    weights,
)


def quantized_autoencoder() -> Step:
    """The nearest of 512 codes, with a straight-through gradient, as in VQ-VAE."""

    def loss(params: Any, x: Any) -> Any:
        codes = params["codes"]
        encoded = perceptron(jax.nn.relu, params["encoder"], x)
        squares = jnp.sum(encoded**2, 1, keepdims=True) + jnp.sum(codes**2, 1)
        nearest = codes[jnp.argmin(squares - 2 * encoded @ codes.T, 1)]
        passed = encoded + jax.lax.stop_gradient(nearest - encoded)
        decoded = perceptron(jax.nn.relu, params["decoder"], passed)
        to_codes = mean_square(jax.lax.stop_gradient(encoded), nearest)
        to_encoder = mean_square(encoded, jax.lax.stop_gradient(nearest))
        return mean_square(decoded, x) + to_codes + 0.25 * to_encoder

    params = {
        "encoder": weights(0, (64, 256), (256, 32)),
        "codes": normal(3, 512, 32),
        "decoder": weights(1, (32, 256), (256, 64)),
    }
    return trained(loss, params, optax.adam(1e-3), normal(1, 4096, 64))


def contrastive() -> Step:
    """Two views of each example against all others, with batch normalisation."""

    def encoded(params: Any, x: Any) -> Any:
        for w in params[:-1]:
            x = x @ w
            x = jax.nn.relu((x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5))
        z = x @ params[-1]
        return z / jnp.linalg.norm(z, axis=-1, keepdims=True)

    def loss(params: Any, first: Any, second: Any) -> Any:
        z = jnp.concatenate([encoded(params, first), encoded(params, second)])
        size = z.shape[0]
        similarities = jnp.where(jnp.eye(size, dtype=bool), -1e9, z @ z.T / 0.1)
        return classified(similarities, jnp.roll(jnp.arange(size), size // 2))

    params = weights(0, (128, 256), (256, 256), (256, 64))
    return trained(loss, params, optax.lars(0.1), normal(1, 512, 128), normal(2, 512, 128))


def policy_gradient() -> Step:
    """PPO: three epochs of four shuffled minibatches, two loops around whole steps."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))

    def loss(params: Any, batch: Any) -> Any:
        x = batch["seen"]
        for w in params["body"]:
            x = jnp.tanh(x @ w)
        logs = jax.nn.log_softmax(x @ params["policy"])
        values = (x @ params["value"])[:, 0]
        log = jnp.take_along_axis(logs, batch["action"][:, None], 1)[:, 0]
        ratio, advantage = jnp.exp(log - batch["log"]), batch["advantage"]
        clipped = jnp.clip(ratio, 0.8, 1.2) * advantage
        gain = jnp.minimum(ratio * advantage, clipped).mean()
        entropy = -(logs * jnp.exp(logs)).sum(-1).mean()
        return 0.5 * mean_square(values, batch["return"]) - gain - 0.01 * entropy

    def update(state: Any, batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    def step(state: Any, batch: Any, key: Any) -> Any:
        def epoch(state: Any, key: Any) -> Any:
            order = jax.random.permutation(key, 4096)
            parts = jax.tree.map(lambda x: x[order].reshape(4, 1024, *x.shape[1:]), batch)
            return jax.lax.scan(update, state, parts)

        return jax.lax.scan(epoch, state, jax.random.split(key, 3))

    params = {
        "body": weights(0, (24, 128), (128, 128)),
        "policy": weights(1, (128, 6))[0],
        "value": weights(2, (128, 1))[0],
    }
    batch = {
        "seen": normal(1, 4096, 24),
        "action": integers(2, 6, 4096),
        "log": jnp.full(4096, -1.8),
        "advantage": normal(3, 4096),
        "return": normal(4, 4096),
    }
    return Step(step, ((params, optimizer.init(params)), batch, jax.random.key(7)))


def accumulated_gradients() -> Step:
    """Four microbatches in a `fori_loop`, then one update."""
    optimizer = optax.adamw(1e-3)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return mean_square(perceptron(jax.nn.gelu, params, x), y)

    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments = state

        def body(number: Any, sums: Any) -> Any:
            value, grads = jax.value_and_grad(loss)(params, x[number], y[number])
            return jax.tree.map(jnp.add, sums, (grads, value))

        zeros = jax.tree.map(jnp.zeros_like, params), 0.0
        grads, value = jax.lax.fori_loop(0, 4, body, zeros)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value / 4

    params = weights(0, (64, 256), (256, 256), (256, 64))
    state = params, optimizer.init(params)
    return Step(step, (state, normal(1, 4, 1024, 64), normal(2, 4, 1024, 64)))


def gaussian_process() -> Step:
    """The likelihood of a deep kernel, by a Cholesky factorization."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        z = perceptron(jnp.tanh, params["features"], x)
        distances = ((z[:, None] - z[None]) ** 2).sum(-1)
        kernel = jnp.exp(-0.5 * distances * jnp.exp(params["scale"]))
        kernel += (jnp.exp(params["noise"]) + 0.1) * jnp.eye(x.shape[0])
        factor = jnp.linalg.cholesky(kernel)
        solved = jax.scipy.linalg.cho_solve((factor, True), y)
        return 0.5 * y @ solved + jnp.log(jnp.diag(factor)).sum()

    params = {
        "features": weights(0, (8, 64), (64, 16)),
        "scale": jnp.zeros(()),
        "noise": jnp.zeros(()),
    }
    return trained(loss, params, optax.adam(1e-2), normal(1, 256, 8), normal(2, 256))


def optimal_transport() -> Step:
    """Ten rounds of Sinkhorn's algorithm in a scan."""
    points, temperature = 256, 0.5

    def loss(params: Any, x: Any, y: Any) -> Any:
        z = perceptron(jnp.tanh, params, x)
        costs = ((z[:, None] - y[None]) ** 2).sum(-1)

        def body(potentials: Any, _: Any) -> Any:
            scaled = (potentials[1][None] - costs) / temperature
            first = -temperature * jax.nn.logsumexp(scaled, 1)
            scaled = (first[:, None] - costs) / temperature
            return (first, -temperature * jax.nn.logsumexp(scaled, 0)), None

        zeros = jnp.zeros(points), jnp.zeros(points)
        (first, second), _ = jax.lax.scan(body, zeros, None, length=10)
        plan = jnp.exp((first[:, None] + second[None] - costs) / temperature)
        return (plan * costs).sum()

    params = weights(0, (16, 64), (64, 16))
    batch = normal(1, points, 16), normal(2, points, 16)
    return trained(loss, params, optax.adam(1e-3), *batch)


def equilibrium() -> Step:
    """A fixed point, whose gradient is another one (`jax.custom_vjp`)."""

    def layer(params: Any, x: Any, z: Any) -> Any:
        return jnp.tanh(z @ params[0] + x @ params[1])

    @jax.custom_vjp
    def fixed_point(params: Any, x: Any) -> Any:
        start = jnp.zeros_like(x)
        return jax.lax.fori_loop(0, 20, lambda i, z: layer(params, x, z), start)

    def forward(params: Any, x: Any) -> Any:
        z = fixed_point(params, x)
        return z, (params, x, z)

    def backward(kept: Any, g: Any) -> Any:
        params, x, z = kept
        _, pulled = jax.vjp(lambda z: layer(params, x, z), z)

        def body(carry: Any) -> Any:
            return g + pulled(carry[0])[0], carry[1] + 1

        found, _ = jax.lax.while_loop(lambda carry: carry[1] < 20, body, (g, 0))
        return jax.vjp(lambda params, x: layer(params, x, z), params, x)[1](found)

    fixed_point.defvjp(forward, backward)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return mean_square(fixed_point(params, x), y)

    params = weights(0, (64, 64), (64, 64), scale=0.05)
    return trained(loss, params, optax.adam(1e-3), normal(1, 2048, 64), normal(2, 2048, 64))


def two_towers() -> Step:
    """Embeddings of users and items, with the other items of the batch as negatives."""
    rows = 20000

    def tower(params: Any, x: Any) -> Any:
        x = perceptron(jax.nn.relu, params, x)
        return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)

    def loss(params: Any, histories: Any, items: Any) -> Any:
        users = tower(params["of_users"], params["users"][histories].mean(1))
        found = tower(params["of_items"], params["items"][items])
        return classified(users @ found.T * 10, jnp.arange(items.shape[0]))

    params = {
        "users": 0.1 * normal(0, rows, 32),
        "items": 0.1 * normal(1, rows, 32),
        "of_users": weights(2, (32, 128), (128, 32)),
        "of_items": weights(3, (32, 128), (128, 32)),
    }
    batch = integers(4, rows, 1024, 8), integers(5, rows, 1024)
    return trained(loss, params, optax.adagrad(0.1), *batch)
