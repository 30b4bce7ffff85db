"""Small steps of dense layers: residual networks, flows, adapters, two networks at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from compare.small.training import (
    Step,
    mean_square,
    normal,
    perceptron,
    trained,
    weights,
)


def residual_mlp() -> Step:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for w in params[:-1]:
            x = x + jnp.tanh(x @ w)
        return mean_square(x @ params[-1], y)

    params = weights(0, *[(32, 32)] * 5, (32, 8))
    batch = normal(1, 1024, 32), normal(2, 1024, 8)
    return trained(loss, params, optax.sgd(1e-2, momentum=0.9), *batch)


def wide_mlp() -> Step:
    def loss(params: Any, x: Any, y: Any) -> Any:
        for up, down in zip(params[::2], params[1::2], strict=True):
            x = x + jax.nn.silu(x @ up) @ down
        return mean_square(x, y)

    params = weights(0, *[(128, 512), (512, 128)] * 6)
    batch = normal(1, 2048, 128), normal(2, 2048, 128)
    return trained(loss, params, optax.adamw(1e-3), *batch)


def low_rank_adapters() -> Step:
    """Two small matrices beside each frozen one."""

    def loss(params: Any, frozen: Any, x: Any, y: Any) -> Any:
        for (up, down), (first, second) in zip(frozen, params, strict=True):
            x = x + jax.nn.gelu(x @ up + (x @ first) @ second) @ down
        return mean_square(x, y)

    frozen = [weights(i, (128, 512), (512, 128)) for i in range(6)]
    params = [(0.1 * normal(i, 128, 4), jnp.zeros((4, 512))) for i in range(6)]
    batch = frozen, normal(1, 1024, 128), normal(2, 1024, 128)
    return trained(loss, params, optax.adam(1e-3), *batch)


def distillation() -> Step:
    def loss(student: Any, teacher: Any, x: Any) -> Any:
        taught = jax.lax.stop_gradient(perceptron(jax.nn.relu, teacher, x))
        logs = jax.nn.log_softmax(perceptron(jax.nn.relu, student, x) / 2)
        return -(logs * jax.nn.softmax(taught / 2)).sum(-1).mean()

    teacher = weights(0, (64, 512), (512, 512), (512, 32))
    student = weights(1, (64, 128), (128, 128), (128, 32))
    return trained(loss, student, optax.adam(1e-3), teacher, normal(1, 2048, 64))


def hypernetwork() -> Step:
    """A network makes the weights of another, one per example."""

    def loss(params: Any, conditions: Any, x: Any, y: Any) -> Any:
        made = perceptron(jnp.tanh, params, conditions).reshape(-1, 2, 32, 32)
        for layer in range(2):
            x = jnp.tanh(jnp.einsum("bnd,bde->bne", x, made[:, layer]))
        return mean_square(x, y)

    params = weights(0, (16, 64), (64, 2 * 32 * 32))
    batch = normal(1, 64, 16), normal(2, 64, 64, 32), normal(3, 64, 64, 32)
    return trained(loss, params, optax.adam(1e-3), *batch)


def spline_network() -> Step:
    """Layers of learned functions on a grid, as in Kolmogorov-Arnold networks."""
    grid = jnp.linspace(-2, 2, 12)

    def loss(params: Any, x: Any, y: Any) -> Any:
        for coefficients in params:
            bases = jnp.exp(-(((jnp.tanh(x)[..., None] * 2 - grid) * 3) ** 2))
            x = jnp.einsum("big,igo->bo", bases, coefficients)
        return mean_square(x, y)

    params = [0.1 * normal(i, 32, 12, 32) for i in range(3)]
    batch = normal(1, 1024, 32), normal(2, 1024, 32)
    return trained(loss, params, optax.adam(1e-3), *batch)


def flow() -> Step:
    """Eight affine couplings, as in RealNVP."""

    def loss(params: Any, x: Any) -> Any:
        log_determinant = jnp.zeros(x.shape[0])
        for number, coupling in enumerate(params):
            kept, changed = jnp.split(x, 2, -1)[:: -1 if number % 2 else 1]
            scale, shift = jnp.split(perceptron(jnp.tanh, coupling, kept), 2, -1)
            scale = jnp.tanh(scale)
            changed = changed * jnp.exp(scale) + shift
            log_determinant += scale.sum(-1)
            x = jnp.concatenate([kept, changed], -1)
        return jnp.mean(0.5 * jnp.sum(x**2, -1) - log_determinant)

    params = [weights(i, (16, 128), (128, 128), (128, 32)) for i in range(8)]
    return trained(loss, params, optax.adam(1e-3), normal(1, 2048, 32))


def ordinary_differential_equation() -> Step:
    """Six steps of Runge and Kutta through one network."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        def slope(x: Any) -> Any:
            return perceptron(jnp.tanh, params, x)

        size = 0.1
        for _ in range(6):
            first = slope(x)
            second = slope(x + size / 2 * first)
            third = slope(x + size / 2 * second)
            fourth = slope(x + size * third)
            x = x + size / 6 * (first + 2 * second + 2 * third + fourth)
        return mean_square(x, y)

    params = weights(0, (32, 128), (128, 128), (128, 32))
    batch = normal(1, 1024, 32), normal(2, 1024, 32)
    return trained(loss, params, optax.adam(1e-3), *batch)


def adversarial() -> Step:
    """A Wasserstein GAN with a gradient penalty: both networks in one step."""
    optimizer = optax.adam(1e-4)

    def values(critic: Any, x: Any) -> Any:
        return perceptron(jax.nn.leaky_relu, critic, x)

    def critic_loss(critic: Any, generator: Any, x: Any, z: Any, mixture: Any) -> Any:
        made = values(generator, z)
        mixed = mixture * x + (1 - mixture) * made
        slopes = jax.vmap(jax.grad(lambda x: values(critic, x)[0]))(mixed)
        penalty = jnp.mean((jnp.linalg.norm(slopes, axis=-1) - 1) ** 2)
        return values(critic, made).mean() - values(critic, x).mean() + 10 * penalty

    def updated(params: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def step(state: Any, x: Any, z: Any, mixture: Any) -> Any:
        generator, critic, of_generator, of_critic = state
        of_real, grads = jax.value_and_grad(critic_loss)(critic, generator, x, z, mixture)
        critic, of_critic = updated(critic, of_critic, grads)
        of_made, grads = jax.value_and_grad(
            lambda generator: -values(critic, values(generator, z)).mean()
        )(generator)
        generator, of_generator = updated(generator, of_generator, grads)
        return (generator, critic, of_generator, of_critic), (of_real, of_made)

    generator = weights(0, (32, 128), (128, 128), (128, 64))
    critic = weights(1, (64, 128), (128, 128), (128, 1))
    state = generator, critic, optimizer.init(generator), optimizer.init(critic)
    mixture = jax.random.uniform(jax.random.key(4), (2048, 1))
    return Step(step, (state, normal(1, 2048, 64), normal(2, 2048, 32), mixture))
