"""What a loop carries takes over the memory of what it begins with, as in XLA."""

import jax.numpy as jnp
import pytest
from jax import lax
from steps import compiled_graph, traced

from coop_jax import _ext
from coop_jax.xla.memory_figures import memory_figures

BYTES = 4 * 256 * 1024
# A pool's blocks begin at multiples of it, the last one as well.
ALIGNMENT = 64


def _while(y):
    return lax.while_loop(lambda c: c[1] < 5.0, lambda c: (jnp.tanh(c[0]), c[1] + 1.0), y)


def _scan(y):
    return lax.scan(lambda c, x: ((jnp.tanh(c[0]), c[1] + x), x), y, jnp.arange(5.0))[0]


def _reversed(y):
    return lax.scan(
        lambda c, x: ((jnp.tanh(c[0]), c[1] + x), x), y, jnp.arange(5.0), reverse=True
    )[0]


def _fori(y):
    return lax.fori_loop(0, 5, lambda i, c: (jnp.tanh(c[0]), c[1] + i), y)


LOOPS = {"while": _while, "scan": _scan, "reversed": _reversed, "fori": _fori}


def _step(loop, is_read_later):
    def step(w, x):
        begun = x @ w
        ended, count = loop((begun, jnp.float32(0)))
        later = ended @ begun.T if is_read_later else ended @ ended.T
        return later.sum() + count

    return traced(step, jnp.ones((64, 1024)), jnp.ones((256, 64)))


@pytest.mark.parametrize("name", LOOPS)
def test_no_bound_exceeds_what_the_step_as_written_needs(name):
    step = _step(LOOPS[name], is_read_later=False)
    bound, _ = _ext.lower_bound(compiled_graph(step).core, ALIGNMENT)
    figures = memory_figures(step.compile(step.program))
    assert BYTES <= bound <= figures.total_bytes - figures.fixed_bytes + ALIGNMENT


@pytest.mark.parametrize("name", LOOPS)
def test_what_is_read_behind_the_loop_is_kept_beside_it(name):
    bound, _ = _ext.lower_bound(compiled_graph(_step(LOOPS[name], True)).core, ALIGNMENT)
    assert bound >= 2 * BYTES
