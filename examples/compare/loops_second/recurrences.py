"""Loops over time: masked LSTM layers, a selective state space, differential equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from compare.loops_second.training import (
    Step,
    adam,
    descent,
    half,
    layer_norm,
    normal,
    wrapped,
)
from jax import lax


def lstm_stack(policy: Any) -> Step:
    """LSTM over time in a scan over layers; sequences end at their lengths (masks)."""
    layers, width, batch, length = 4, 96, 16, 64
    params = {
        "w": normal(layers, 2 * width, 4 * width),
        "b": jnp.zeros((layers, 4 * width)),
        "scale": jnp.ones((layers, width)),
    }

    def loss(params: Any, x: jax.Array, lengths: jax.Array) -> jax.Array:
        mask = jnp.arange(length)[:, None] < lengths  # [time, sequence]

        def cell(state: Any, inputs: Any, layer: Any) -> Any:
            hidden, memory = state
            x, is_inside = inputs
            gates = jnp.concatenate([x, hidden], -1) @ layer["w"] + layer["b"]
            i, f, g, o = jnp.split(gates, 4, -1)
            new_memory = jax.nn.sigmoid(f) * memory
            new_memory += jax.nn.sigmoid(i) * jnp.tanh(g)
            new_hidden = jax.nn.sigmoid(o) * jnp.tanh(new_memory)
            keep = is_inside[:, None]
            hidden = jnp.where(keep, new_hidden, hidden)
            return (hidden, jnp.where(keep, new_memory, memory)), hidden

        def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
            zeros = jnp.zeros((batch, width))
            y = layer_norm(x, layer["scale"])
            step = wrapped(lambda s, i: cell(s, i, layer), policy)
            _, y = lax.scan(step, (zeros, zeros), (y, mask))
            return x + y, None

        x, _ = lax.scan(wrapped(body, policy), x, params)
        return jnp.sum(jnp.where(mask[..., None], x, 0.0) ** 2) / jnp.sum(lengths)

    lengths = jax.random.randint(jax.random.key(5), (batch,), 8, length + 1)
    return adam(loss, params, normal(length, batch, width, seed=1, scale=1.0), lengths)


def selective_scan(policy: Any) -> Step:
    """Mamba-like layers: `associative_scan` over time in a scan over layers, bfloat16."""
    layers, width, states, batch, length = 6, 64, 8, 4, 128
    params = {
        "into": normal(layers, width, 4 * width),
        "select": normal(layers, 2 * width, 2 * states + 1),
        "decay": normal(layers, 2 * width, states, scale=1.0),
        "out": normal(layers, 2 * width, width),
        "scale": jnp.ones((layers, width)),
    }

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        y = layer_norm(x.astype(jnp.float32), layer["scale"]).astype(jnp.bfloat16)
        y, gate = jnp.split(y @ half(layer["into"]), 2, -1)
        y = jax.nn.silu(y)
        selected = (y @ half(layer["select"])).astype(jnp.float32)
        b, c, step = jnp.split(selected, [states, 2 * states], -1)
        step = jax.nn.softplus(step)[..., None]
        decay = jnp.exp(-step * jnp.exp(layer["decay"]))
        entered = step * b[..., None, :] * y.astype(jnp.float32)[..., None]

        def combine(one: Any, other: Any) -> Any:
            return one[0] * other[0], one[1] * other[0] + other[1]

        _, hidden = lax.associative_scan(combine, (decay, entered), axis=1)
        y = jnp.einsum("btds,bts->btd", hidden, c).astype(jnp.bfloat16)
        return x + (y * jax.nn.silu(gate)) @ half(layer["out"]), None

    def loss(params: Any, x: jax.Array) -> jax.Array:
        y, _ = lax.scan(wrapped(body, policy), x.astype(jnp.bfloat16), params)
        return jnp.mean((y.astype(jnp.float32) - jnp.roll(x, 1, 1)) ** 2)

    return adam(loss, params, normal(batch, length, width, seed=1, scale=1.0))


def neural_ode(policy: Any) -> Step:
    """Runge-Kutta steps in a scan, then implicit ones solved by `while_loop` in
    `custom_root`, through which JAX differentiates."""
    width, batch, steps, size = 64, 256, 32, 0.05
    params = {"up": normal(width + 1, 2 * width), "down": normal(2 * width, width)}

    def field(params: Any, time: Any, y: jax.Array) -> jax.Array:
        times = jnp.full((batch, 1), time)
        hidden = jnp.tanh(jnp.concatenate([y, times], -1) @ params["up"])
        return hidden @ params["down"]

    def runge_kutta(params: Any, y: jax.Array, time: jax.Array) -> jax.Array:
        first = field(params, time, y)
        second = field(params, time + size / 2, y + size / 2 * first)
        third = field(params, time + size / 2, y + size / 2 * second)
        fourth = field(params, time + size, y + size * third)
        return y + size / 6 * (first + 2 * second + 2 * third + fourth)

    def implicit(params: Any, y: jax.Array, time: jax.Array) -> jax.Array:
        def solve(function: Any, start: jax.Array) -> jax.Array:
            def further(state: Any) -> Any:
                return state[0] + 1, state[1] - function(state[1])

            def is_far(state: Any) -> Any:
                far = jnp.max(jnp.abs(function(state[1]))) > 1e-6
                return (state[0] < 20) & far

            return lax.while_loop(is_far, further, (0, start))[1]

        def solve_linear(linear: Any, right: jax.Array) -> jax.Array:
            further = lambda _, x: x - linear(x) + right  # noqa: E731
            return lax.fori_loop(0, 8, further, right)

        equation = lambda z: z - y - size * field(params, time, z)  # noqa: E731
        return lax.custom_root(equation, y, solve, solve_linear)

    def loss(params: Any, y: jax.Array, target: jax.Array) -> jax.Array:
        explicit_body = lambda y, t: (runge_kutta(params, y, t), None)  # noqa: E731
        implicit_body = lambda y, t: (implicit(params, y, t), None)  # noqa: E731
        times = size * jnp.arange(steps)
        y, _ = lax.scan(wrapped(explicit_body, policy), y, times)
        y, _ = lax.scan(wrapped(implicit_body, policy), y, times[:8])
        return jnp.mean((y - target) ** 2)

    ends = normal(batch, width, seed=1, scale=1.0), normal(batch, width, seed=2)
    return descent(loss, params, *ends)
