"""Cases of calls for `test_parity.py`: steps, their arguments, and options of `jax.jit`."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, BATCH, WIDTH = 3, 512, 32
# Where random bits, roundings, or results that do not take the place of donated arguments
# need as much as the step of so few layers keeps.
DEEP = 5


@dataclasses.dataclass
class Case:
    """A step and how it is called.

    Attributes:
        step: the step as written.
        calls: makes the arguments of every call, fresh, as `(args, kwargs)`.
        options: of `jax.jit`.
        context: what all calls run in.
    """

    step: Callable
    calls: Callable[[], list[tuple[tuple, dict]]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    context: Callable[[], Any] = contextlib.nullcontext


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def arrays(dtype="float32", layers=LAYERS):
    random = np.random.default_rng(0)
    weights = [
        jnp.asarray(random.normal(size=(WIDTH, WIDTH)) * 0.2, dtype) for _ in range(layers)
    ]
    return weights, jnp.asarray(random.normal(size=(BATCH, WIDTH)), dtype)


def update(weights, x, rate=0.1, scale=1.0):
    """A step with enough to recompute."""

    def loss(weights):
        hidden = x
        for w in weights:
            hidden = hidden + jnp.tanh(hidden @ w)
        return jnp.mean((hidden * hidden.conj()).real) * scale

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - rate * g, weights, grads), value


def twice(*args, **kwargs):
    """Arguments of two equal calls; arrays are copied, as they may be donated."""

    def calls():
        def fresh(leaf):
            return leaf.copy() if isinstance(leaf, jax.Array) else leaf

        return [jax.tree.map(fresh, (args, kwargs)) for _ in range(2)]

    return calls


@case
def positional():
    return Case(update, twice(*arrays()))


@case
def by_name():
    weights, x = arrays()
    return Case(update, twice(x=x, weights=weights, rate=0.3))


@case
def keyword_only():
    def step(*, state, batch):
        return dict(zip("ab", update(state, batch), strict=True))

    weights, x = arrays(layers=DEEP)
    return Case(step, twice(state=weights, batch=x), {"donate_argnames": "state"})


@case
def static_dataclass():
    @dataclasses.dataclass(frozen=True)
    class Config:
        rate: float
        name: str = "sgd"

    def step(config, weights, x):
        return update(weights, x, config.rate)

    weights, x = arrays()
    calls = [((Config(rate), weights, x), {}) for rate in (0.1, 0.1, 0.5)]
    return Case(step, lambda: calls, {"static_argnums": 0})


@case
def static_by_name_or_position():
    def step(weights, x, mode="plain", *, scale=1.0):
        new, value = update(weights, x)
        return new, value * (scale if mode == "scaled" else 1.0)

    weights, x = arrays()
    calls = [
        ((weights, x), {}),
        ((weights, x, "scaled"), {"scale": 2.0}),
        ((weights, x), {"mode": "scaled", "scale": 3.0}),
    ]
    return Case(step, lambda: calls, {"static_argnames": ("mode", "scale")})


@case
def donated_positions():
    return Case(update, twice(*arrays(layers=DEEP)), {"donate_argnums": (0,)})


@case
def donated_by_name():
    weights, x = arrays(layers=DEEP)
    options = {"donate_argnames": ("weights",)}
    return Case(update, twice(weights=weights, x=x), options)


@case
def none_leaves():
    def step(state, x):
        new, value = update(state["weights"], x)
        return {"weights": new, "extra": None, "count": (state["count"], None)}, value

    weights, x = arrays()
    return Case(step, twice({"weights": weights, "extra": None, "count": 3}, x))


@case
def typed_keys():
    def step(weights, x, key):
        key, use = jax.random.split(key)
        kept = jax.random.bernoulli(use, 0.9, x.shape)
        return *update(weights, jnp.where(kept, x, 0)), key

    return Case(step, twice(*arrays(layers=DEEP), jax.random.key(7)), {"donate_argnums": 2})


@case
def raw_keys():
    def step(weights, x, key):
        key, use = jax.random.split(key)
        return *update(weights, x + jax.random.normal(use, x.shape)), key

    return Case(step, twice(*arrays(layers=DEEP), jax.random.PRNGKey(7)))


@case
def weak_types_in_and_out():
    def step(weights, x, count, rate):
        new, value = update(weights, x, rate)
        return new, value, count + 1, rate * 2, jnp.sin(1.0), 3

    weights, x = arrays()
    strong = jnp.float32(0.1), jnp.int32(0)
    calls = [
        ((weights, x, 0, 0.1), {}),
        ((weights, x, strong[1], strong[0]), {}),
        ((weights, x, jnp.asarray(0), jnp.asarray(0.1)), {}),
        ((weights, x, True, 0.1), {}),
    ]
    return Case(step, lambda: calls)


@case
def numpy_and_jax_arguments():
    weights, x = arrays()
    calls = [((weights, np.asarray(x)), {}), ((weights, x), {})]
    return Case(update, lambda: calls)


@case
def bfloat16():
    return Case(update, twice(*arrays("bfloat16", layers=DEEP + 1)))


@case
def complex_numbers():
    def step(weights, x):
        return *update(weights, jnp.fft.fft(x)), x[0].conj()

    return Case(step, twice(*arrays("complex64")))


@case
def x64():
    def context():
        return jax.enable_x64(True)

    def calls():
        weights, x = arrays("float64")
        return [((weights, x, 0.1), {})] * 2

    return Case(update, calls, context=context)


@case
def matmul_precision():
    def context():
        return jax.default_matmul_precision("highest")

    return Case(update, twice(*arrays()), context=context)


@case
def float0_results():
    def step(weights, x, count):
        def loss(weights, count):
            return update(weights, x)[1] * count.astype(jnp.float32)

        grads = jax.grad(loss, argnums=(0, 1), allow_int=True)(weights, count)
        return *update(weights, x), grads

    return Case(step, twice(*arrays(layers=DEEP), jnp.arange(3)[1]))


@case
def arguments_and_constants_as_results():
    def step(weights, x, aside):
        new, value = update(weights, x)
        return new, value, aside, x, jnp.ones(3), new[0], np.arange(2)

    return Case(step, twice(*arrays(), jnp.arange(4)))


@case
def unused_arguments():
    def step(weights, x, unused):
        return update(weights, x)

    return Case(step, twice(*arrays(), jnp.ones((8, 8))))


@case
def unused_arguments_kept():
    def step(weights, x, unused):
        return update(weights, x)

    return Case(step, twice(*arrays(), jnp.ones((8, 8))), {"keep_unused": True})


@case
def empty_arrays():
    def step(weights, x, nothing):
        return *update(weights, x), nothing * 2, jnp.zeros((0, 3))

    return Case(step, twice(*arrays(), jnp.zeros((0, 5))))


@case
def named_tuples():
    State = collections.namedtuple("State", ["weights", "count"])

    def step(state, x):
        new, value = update(state.weights, x)
        return State(new, state.count + 1), {"loss": value}

    weights, x = arrays()
    return Case(step, twice(State(weights, 0), x))


@case
def a_partial():
    return Case(functools.partial(update, rate=0.2), twice(*arrays()))


@case
def a_bound_method():
    class Trainer:
        rate = 0.3

        def step(self, weights, x):
            return update(weights, x, self.rate)

    return Case(Trainer().step, twice(*arrays()))


@case
def a_callable_object():
    class Step:
        def __call__(self, weights, x):
            return update(weights, x)

    return Case(Step(), twice(*arrays()))


@case
def closed_over_arrays():
    offset = jnp.arange(WIDTH, dtype="float32")
    table = np.linspace(0, 1, WIDTH, dtype="float32")

    def step(weights, x):
        return update(weights, x + offset * table)

    return Case(step, twice(*arrays()))


@case
def nested_jit_with_options():
    @functools.partial(jax.jit, static_argnames="rate", donate_argnums=0)
    def inner(weights, x, rate):
        return update(weights, x, rate)

    return Case(lambda w, x: inner(w, x, rate=0.2), twice(*arrays()))


def two_devices():
    return Mesh(np.array(jax.devices()[:2]), ("x",))


@case
def sharded_arguments():
    rows = NamedSharding(two_devices(), P("x"))
    everywhere = NamedSharding(two_devices(), P())
    weights, x = arrays()
    weights = jax.device_put(weights, everywhere)
    return Case(update, twice(weights, jax.device_put(x, rows)))


@case
def shardings_written_in_several_ways():
    """Rows over two devices four times, then in another order."""
    weights, x = arrays()
    devices = np.array(jax.devices()[:2])
    one, two = Mesh(devices, ("x",)), Mesh(devices[:, None], ("a", "b"))
    layouts = [
        NamedSharding(one, P("x")),
        NamedSharding(one, P("x", None)),
        NamedSharding(one, P(("x",))),
        NamedSharding(two, P("a", "b")),
        NamedSharding(Mesh(devices[::-1], ("x",)), P("x")),
    ]

    def calls():
        made = []
        for rows in layouts:
            everywhere = NamedSharding(rows.mesh, P())
            made.append((jax.device_put(weights, everywhere), jax.device_put(x, rows)))
        return [(args, {}) for args in made]

    return Case(update, calls)


@case
def asked_for_shardings():
    rows = NamedSharding(two_devices(), P("x"))
    options = {"in_shardings": (None, rows), "out_shardings": (rows, None)}
    return Case(update, twice(*arrays()), options)


@case
def another_device():
    device = jax.devices()[3]
    return Case(update, twice(*jax.device_put(arrays(), device)))


@case
def default_device():
    def context():
        return jax.default_device(jax.devices()[2])

    def calls():
        weights, x = arrays()
        return [((jax.tree.map(np.asarray, weights), np.asarray(x)), {})] * 2

    return Case(update, calls, context=context)


@case
def committed_after_uncommitted():
    weights, x = arrays()
    device = jax.devices()[0]
    calls = [((weights, x), {}), (jax.device_put((weights, x), device), {})]
    return Case(update, lambda: calls)
