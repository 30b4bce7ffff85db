"""`coop_jax.compare` where a policy stands in the body of a loop."""

import jax
import jax.numpy as jnp
import pytest

import coop_jax
from coop_jax.comparison.checkpoint_policies import wrap_with
from coop_jax.comparison.recompute_counts import has_barriers_in_loops

NOTHING = jax.checkpoint_policies.nothing_saveable


def scanned(block, x):
    return jax.lax.scan(lambda x, _: (block(x), None), x, None, length=5)[0]


def nested(block, x):
    return jax.lax.scan(lambda x, _: (scanned(block, x), None), x, None, length=3)[0]


def branches(block, x):
    def body(x, _):
        return jax.lax.cond(x[0] > 0, block, lambda x: x, x), None

    return jax.lax.scan(body, x, None, length=5)[0]


@pytest.mark.parametrize("repeated", [scanned, nested, branches, jax.lax.map])
def test_policies_in_loops_with_little_work(repeated):
    """XLA:CPU aborts on a barrier where it makes one kernel of such a loop."""

    def make(wrap):
        block = wrap(lambda x: jnp.sin(2 * jnp.sin(x)))

        def step(x):
            return x - 0.1 * jax.grad(lambda x: repeated(block, x).sum())(x)

        return step

    made = make(wrap_with(NOTHING))
    assert has_barriers_in_loops(jax.make_jaxpr(made)(jnp.ones(8)))
    table = coop_jax.compare(make, jnp.ones(8), policies={"nothing": NOTHING})
    assert table.row("nothing").measured_bytes > 0


def test_barriers_in_loops_are_found():
    def in_loop(x):
        return scanned(lambda x: jax.lax.optimization_barrier(x) + 1, x)

    assert has_barriers_in_loops(jax.make_jaxpr(in_loop)(1.0))
    assert has_barriers_in_loops(jax.make_jaxpr(jax.jit(in_loop))(1.0))
    beside = jax.make_jaxpr(lambda x: jax.lax.optimization_barrier(scanned(jnp.sin, x)))
    assert not has_barriers_in_loops(beside(1.0))
