"""Random programs and random valid schedules, to test the rewrite with."""

from __future__ import annotations

import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coop_jax import _ext
from coop_jax.graph.step_graph import StepGraph
from coop_jax.graph.stored_values import StoredValues
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import writes

_SIDE = 4  # every float, integer and boolean value is a (4, 4) matrix


def random_function(seed: int, length: int) -> tuple[Callable, tuple]:
    """A function of (floats, integers, flags, key), and arguments for it.

    Its values are float32, int32, bool and key typed; its operations elementwise (in
    place if the planner likes), products, reductions, with several results (scan, sort,
    key splits), linear algebra, transforms, scatters, gathers, convolutions and windows,
    under `jit`, `checkpoint`, `cond` and custom rules, and some are computed twice.
    """

    def function(floats, integers, flags, key):
        choose = random.Random(seed)
        values = {"f": [floats], "i": [integers], "b": [flags], "k": [key]}
        for _ in range(length):
            choose.choice(_OPERATIONS)(choose, values)
        return {kind: made[-3:] for kind, made in values.items()}

    numbers = np.random.default_rng(seed)
    shape = _SIDE, _SIDE
    arguments = (
        jnp.asarray(numbers.uniform(-1, 1, shape), jnp.float32),
        jnp.asarray(numbers.integers(-5, 5, shape), jnp.int32),
        jnp.asarray(numbers.integers(0, 2, shape), bool),
        jax.random.key(seed),
    )
    return function, arguments


def _unary(choose, values):
    fn = choose.choice([jnp.tanh, jnp.sin, lambda x: x * 0.5 + 1, lambda x: x.T])
    values["f"].append(fn(choose.choice(values["f"])))


def _binary(choose, values):
    fn = choose.choice([jnp.add, jnp.multiply, jnp.maximum, lambda a, b: a @ b * 0.2])
    values["f"].append(fn(choose.choice(values["f"]), choose.choice(values["f"])))


def _reduce(choose, values):
    x = choose.choice(values["f"])
    values["f"].append(x - x.mean(axis=choose.choice([0, 1]), keepdims=True))


def _integer(choose, values):
    fn = choose.choice([jnp.add, jnp.minimum, lambda a, b: a ^ b])
    values["i"].append(fn(choose.choice(values["i"]), choose.choice(values["i"])))


def _compare(choose, values):
    values["b"].append(choose.choice(values["f"]) > choose.choice(values["f"]))


def _logic(choose, values):
    a, b = choose.choice(values["b"]), choose.choice(values["b"])
    values["b"].append(jnp.logical_xor(a, ~b))


def _select(choose, values):
    a, b = choose.choice(values["f"]), choose.choice(values["f"])
    values["f"].append(jnp.where(choose.choice(values["b"]), a, b))


def _convert(choose, values):
    values["f"].append(choose.choice(values["i"]).astype(jnp.float32) * 0.1)


def _split(choose, values):
    values["k"] += list(jax.random.split(choose.choice(values["k"])))


def _draw(choose, values):
    values["f"].append(jax.random.normal(choose.choice(values["k"]), (_SIDE, _SIDE)))


def _sort(choose, values):
    f, i = choose.choice(values["f"]), choose.choice(values["i"])
    floats, integers = lax.sort((f, i), num_keys=1)
    values["f"].append(floats)
    values["i"].append(integers)


def _scan(choose, values):
    x = choose.choice(values["f"])
    last, stacked = lax.scan(lambda c, row: (c + row, c * row), x[0], x)
    values["f"].append(stacked + last)


def _nested(choose, values):
    wrap = choose.choice([jax.jit, jax.checkpoint])
    values["f"].append(wrap(lambda x: jnp.sin(x) * x)(choose.choice(values["f"])))


@jax.custom_jvp
def _clipped(x):
    return jnp.clip(x, -1, 1)


_clipped.defjvps(lambda tangent, _, x: tangent * jnp.exp(-x * x))


@jax.custom_vjp
def _rounded(x, scale):
    return jnp.round(x * 4) * scale


_rounded.defvjp(
    lambda x, scale: (_rounded(x, scale), (x, scale)),
    lambda kept, g: (4 * g * kept[1], g * kept[0]),
)


def _with_a_rule(choose, values):
    """Rules that differentiation of what they are rules of would not give."""
    x, y = choose.choice(values["f"]), choose.choice(values["f"])
    values["f"].append(choose.choice([_clipped(x), _rounded(x, jnp.tanh(y))]))


def _bounded(x):
    return x / (1 + jnp.abs(x).max())


def _positive(x):
    x = _bounded(x)
    return x @ x.T + 2 * jnp.eye(_SIDE)


def _whitened(x, y):
    factor = jnp.linalg.cholesky(_positive(x))
    return jax.scipy.linalg.solve_triangular(factor, y.T, lower=True).T


def _linear_algebra(choose, values):
    """Primitives that LAPACK lays out by columns, of well conditioned matrices."""
    x, y = choose.choice(values["f"]), choose.choice(values["f"])
    spread = jnp.diag(jnp.arange(4.0, 4.0 + _SIDE))
    fn = choose.choice(
        [
            lambda: jnp.linalg.solve(_positive(x), y),
            lambda: _whitened(x, y),
            lambda: jnp.linalg.qr(_bounded(x) + spread)[0] @ y,
            lambda: jnp.linalg.inv(_bounded(x) + spread) + y,
            lambda: jnp.linalg.eigh(spread + _bounded(x + x.T) / 8)[0] * y,
            lambda: jax.scipy.linalg.lu_factor(_bounded(x) + spread)[0],
        ]
    )
    values["f"].append(fn())


def _transform(choose, values):
    x = choose.choice(values["f"])
    values["f"].append(jnp.fft.ifft2(jnp.fft.fft2(x) * 1j).real)


def _scatter(choose, values):
    x, y = choose.choice(values["f"]), choose.choice(values["f"])
    rows = jnp.abs(choose.choice(values["i"])[0]) % _SIDE
    added = x.at[rows].add(y)
    values["f"].append(choose.choice([added, added[rows], x.at[0, rows].max(y[1])]))


def _window(choose, values):
    x, y = choose.choice(values["f"]), choose.choice(values["f"])
    kernel = _bounded(y)[:2, :2].reshape(1, 1, 2, 2)
    image = x.reshape(1, 1, _SIDE, _SIDE)
    fn = choose.choice(
        [
            lambda: lax.conv(image, kernel, (1, 1), "SAME"),
            lambda: lax.reduce_window(
                image, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "SAME"
            ),
            lambda: jnp.cumsum(image, axis=2) / _SIDE,
        ]
    )
    values["f"].append(fn().reshape(_SIDE, _SIDE))


def _branch(choose, values):
    x = choose.choice(values["f"])
    values["f"].append(lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x))


_OPERATIONS = (
    _unary,
    _binary,
    _binary,
    _reduce,
    _integer,
    _compare,
    _logic,
    _select,
    _convert,
    _split,
    _draw,
    _sort,
    _scan,
    _nested,
    _branch,
    _with_a_rule,
    _linear_algebra,
    _transform,
    _scatter,
    _window,
)


def random_schedule(graph: StepGraph, seed: int, eviction_rate: float) -> _ext.Schedule:
    """A valid schedule that drops evictable tensors at random and recomputes them.

    Written without the planner: every block gets an address of its own.
    """
    choose = random.Random(seed)
    core = graph.core
    evictable, last_use = core.evictable, core.last_use
    producer = core.producer
    resident = set(range(graph.num_inputs))
    steps: list[tuple[int, int]] = []
    placements: list[tuple[int, int, int, int]] = []
    top = 0

    def run(operation: int, kind: int) -> None:
        nonlocal top
        for tensor in graph.operations[operation].outputs:
            if graph.in_pool_bytes[tensor] and tensor not in resident:
                placements.append((len(steps), tensor, top, -1))
                top += -(-graph.in_pool_bytes[tensor] // 64) * 64
            resident.add(tensor)
        steps.append((kind, operation))

    def fetch(tensor: int) -> None:
        if tensor not in resident:
            for needed in graph.operations[producer[tensor]].inputs:
                fetch(needed)
            run(producer[tensor], _ext.Schedule.RECOMPUTE)

    for k, operation in enumerate(graph.operations):
        for tensor in operation.inputs:
            fetch(tensor)
        run(k, _ext.Schedule.COMPUTE)
        for tensor in sorted(resident):
            if not evictable[tensor] or not graph.in_pool_bytes[tensor]:
                continue
            if last_use[tensor] <= k:
                steps.append((_ext.Schedule.FREE, tensor))
                resident.discard(tensor)
            elif choose.random() < eviction_rate:
                steps.append((_ext.Schedule.EVICT, tensor))
                resident.discard(tensor)
    return _ext.Schedule(
        steps=np.array(steps, np.int64).reshape(-1, 2),
        placements=np.array(placements, np.int64).reshape(-1, 4),
        initial_placements=np.zeros((0, 2), np.int64),
        workspaces=np.zeros((0, 2), np.int64),
        capacity=max(top, 64),
        peak_bytes=top,
    )


def random_materialization(program, seed: int, rate: float) -> StoredValues:
    choose = random.Random(seed)
    values = [v for eqn in program.eqns for v in writes(eqn)]
    stored = {v: aval_bytes(v.aval) for v in values if choose.random() < rate}
    return StoredValues(stored, {}, {}, 0, "rules")
