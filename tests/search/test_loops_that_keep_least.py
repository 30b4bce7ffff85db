"""Where the model hardly tells plans of loops apart, the executable decides."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from scanned_steps import descent, normal

from coop_jax import backends, remat_train_step
from coop_jax.search import loop_search
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

TARGET = named("cpu")
CHANNELS = 32


def layered(wrap=lambda body: body):
    """Neighbours summed, with a layer norm: XLA stores more around kept statistics."""

    def loss(w, x):
        def body(x, w):
            kernel, up, down = w
            h = sum(jnp.roll(x, shift, 1) * each for shift, each in enumerate(kernel))
            h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-6)
            return x + jax.nn.gelu(h @ up) @ down, None

        return jnp.mean(lax.scan(wrap(body), x, w)[0] ** 2)

    weights = (
        normal(8, 7, CHANNELS),
        normal(8, CHANNELS, 4 * CHANNELS),
        normal(8, 4 * CHANNELS, CHANNELS),
    )
    return descent(loss, weights, normal(4, 32, 32, CHANNELS))


def figures(compiled):
    return memory_figures(compiled).total_bytes, executable_seconds(compiled, TARGET)


@pytest.mark.parametrize("share", [1, 1.5])
@pytest.mark.slow
def test_no_plan_is_slower_than_to_keep_nothing(share):
    step, args = layered()
    by_hand = jax.jit(layered(jax.checkpoint)[0]).lower(*args).compile()
    fewest, seconds = figures(by_hand)
    planned = remat_train_step(step, budget=int(share * fewest))
    assert planned.plan(*args).measured_bytes <= share * fewest
    assert figures(planned.lower(*args).compile())[1] <= 1.02 * seconds


@pytest.mark.slow
def test_what_is_slower_by_more_than_the_model_misses_is_not_tried(monkeypatch):
    step, args = layered()
    counts = []
    # Where memory takes time, the model tells these plans apart, and none more is tried.
    with backends.registered("cpu", backends.without("cpu", "fresh_pages")):
        for hardly in (loop_search.HARDLY, -1.0):
            monkeypatch.setattr(loop_search, "HARDLY", hardly)
            plan = remat_train_step(step, budget="50%").plan(*args)
            counts.append(plan.num_compilations)
    assert counts[0] > counts[1]
