"""What is broadcast for a loop is broadcast in its body: it holds what is repeated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops.one_by_one import bits, evaluate
from scanned_steps import BATCH, STEPS, WIDTH, descent, layer, normal, weights

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.loop import Loop
from coop_jax.trace.costs import aval_bytes

ROWS = 3


def attended(x, w):
    """Rows that see only those before them, in every head and sequence."""
    x = layer(x, w)
    heads = x.reshape(BATCH // ROWS, ROWS, 4, WIDTH // 4).swapaxes(1, 2)
    mask = jnp.tril(jnp.ones((ROWS, ROWS), bool))
    shares = jnp.where(mask, jnp.tanh(heads @ heads.swapaxes(2, 3)), 0.0)
    return x + (shares @ heads).swapaxes(1, 2).reshape(x.shape)


def masked():
    def loss(w, x):
        return jnp.mean(jax.lax.scan(lambda x, w: (attended(x, w), None), x, w)[0] ** 2)

    return descent(loss, weights(), normal(BATCH // ROWS * ROWS, WIDTH))


def masked_twice():
    """The mask is constant in two loops, one in the other."""

    def loss(w, x):
        def outer(x, w):
            return jax.lax.scan(lambda x, _: (attended(x, w), None), x, None, length=3)

        return jnp.mean(jax.lax.scan(outer, x, w)[0] ** 2)

    return descent(loss, weights(), normal(BATCH // ROWS * ROWS, WIDTH))


STEPS = {name: make for name, (make, _) in STEPS.items()}
STEPS |= {"masked": masked, "masked twice": masked_twice}


def both_programs(name):
    step, args = STEPS[name]()
    program = TracedStep.trace(step, {}, args, {}).program
    return program, with_broadcasts_inside(program), args


@pytest.mark.parametrize("name", STEPS)
def test_results_have_equal_bits(name):
    *programs, args = both_programs(name)
    results = [evaluate(p.to_jaxpr(), jax.tree.leaves(args)) for p in programs]
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


@pytest.mark.parametrize("name", ["masked", "masked twice"])
def test_a_mask_is_held_once_for_all_sequences_and_heads(name):
    as_written, program, _ = both_programs(name)
    assert _mask_bytes(as_written.eqns) == {(BATCH // ROWS) * 4 * ROWS * ROWS}
    assert _mask_bytes(program.eqns) == {ROWS * ROWS}


def _mask_bytes(eqns) -> set[int]:
    """Bytes of the masks that loops are given."""
    found = set()
    for eqn in eqns:
        if eqn.primitive.name == "scan":
            loop = Loop.of(eqn)
            masks = (v.aval for v in loop.consts if v.aval.dtype == bool)
            found |= {aval_bytes(aval) for aval in masks} | _mask_bytes(loop.body.eqns)
    return found
