"""Inner loops keep less than they stack as written from an outer loop to its gradient."""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scanned_steps import descent, normal, stacked_recurrent

from coop_jax import remat_train_step
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

TARGET = named("cpu")
DOTS = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)


def plain(body):
    return body


def repeated(wrap=plain):
    """Layers that apply their weights several times, in a loop of their own."""

    def loss(w, x):
        def cell(x, w):
            return x + jnp.sin(jnp.tanh(x @ w[0]) @ w[1])

        def layer(x, w):
            x, _ = lax.scan(lambda x, _: (wrap(cell)(x, w), None), x, None, length=6)
            return x * jax.nn.sigmoid(x)

        return jnp.mean(lax.scan(lambda x, w: (wrap(layer)(x, w), None), x, w)[0] ** 2)

    weights = normal(4, 64, 256), normal(4, 256, 64, seed=1)
    return descent(loss, weights, normal(128, 64, seed=2))


def chunked(wrap=plain):
    """Layers of attention over chunks of keys: maxima and sums are carried along."""

    def loss(w, x):
        def attended(q, chunks):
            def one(carry, chunk):
                most, total, out = carry
                scores = q @ chunk.T
                now = jnp.maximum(most, scores.max(-1))
                share, before = jnp.exp(scores - now[:, None]), jnp.exp(most - now)
                out = out * before[:, None] + share @ chunk
                return (now, total * before + share.sum(-1), out), None

            start = jnp.full(len(q), -1e9), jnp.zeros(len(q)), jnp.zeros_like(q)
            (_, total, out), _ = lax.scan(wrap(one), start, chunks)
            return out / total[:, None]

        def layer(x, w):
            keys = (x @ w[0]).reshape(4, -1, x.shape[-1])
            x = x + attended(x @ w[1], keys)
            return x + jax.nn.gelu(x @ w[2]), None

        return jnp.mean(lax.scan(wrap(layer), x, w)[0] ** 2)

    weights = tuple(normal(4, 64, 64, seed=i) for i in range(3))
    return descent(loss, weights, normal(256, 64, seed=3))


STEPS = {
    "repeated": repeated,
    "chunked": chunked,
    "over time": lambda wrap=plain: stacked_recurrent(4, 32, wrap),
}
# By prices alone the recurrent step takes up to 1.11 times as long with the plan as with
# the policy; by the clock, half to two thirds of that. So it is measured.
MEASURED = {"over time"}


def figures(compiled):
    return memory_figures(compiled).total_bytes, executable_seconds(compiled, TARGET)


def least_seconds(executables, args, enough, repeats=15, rounds=20):
    """The least of the measured seconds of each, run one after the other.

    What else the machine does only adds to either, for seconds at a time: there are
    rounds, up to a number, until the seconds are `enough`.
    """
    seconds = [float("inf")] * len(executables)
    for _ in range(rounds):
        for _ in range(repeats):
            for i, run in enumerate(executables):
                start = time.perf_counter()
                jax.block_until_ready(run(*args))
                seconds[i] = min(seconds[i], time.perf_counter() - start)
        if enough(*seconds):
            break
        time.sleep(0.5)
    return seconds


def is_no_slower(ours, by_hand):
    return ours <= 1.02 * by_hand


@pytest.mark.parametrize("name", STEPS)
def test_products_of_inner_loops_are_kept_at_the_price_of_a_policy(name):
    step, args = STEPS[name]()
    by_hand = jax.jit(STEPS[name](DOTS)[0]).lower(*args).compile()
    budget, seconds = figures(by_hand)
    assert budget < 0.9 * figures(jax.jit(step).lower(*args).compile())[0]
    planned = remat_train_step(step, budget=budget)
    assert planned.plan(*args).measured_bytes <= budget
    compiled = planned.lower(*args).compile()
    if name in MEASURED:
        ours, seconds = least_seconds([compiled, by_hand], args, is_no_slower)
    else:
        ours = figures(compiled)[1]
    assert is_no_slower(ours, seconds)
    results = [jax.tree.leaves(fn(*args)) for fn in (planned, jax.jit(step))]
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
