"""Every reader of an implied broadcast has one of its own, in bodies of loops too."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops.one_by_one import bits, evaluate
from scanned_steps import BATCH, WIDTH, descent, layer, normal, weights

from coop_jax.base._compat import open_jaxpr
from coop_jax.compile.traced_step import TracedStep
from coop_jax.emit.own_broadcasts import with_own_broadcasts
from coop_jax.trace.program import reads


def normed(x, w):
    return layer(x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5), w)


def scanned():
    def loss(w, x):
        x, _ = jax.lax.scan(lambda x, w: (normed(x, w), None), x, w)
        return jnp.mean((x / jnp.max(x, 0, keepdims=True)) ** 2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


def unrolled():
    def loss(w, x):
        for i in range(3):
            x = normed(x, jax.tree.map(lambda a, i=i: a[i], w))
        return jnp.mean(x**2)

    return descent(loss, weights(), normal(BATCH, WIDTH))


@pytest.mark.parametrize("make", [scanned, unrolled])
def test_a_broadcast_has_one_reader_and_results_have_equal_bits(make):
    step, args = make()
    program = TracedStep.trace(step, {}, args, {}).program
    own = with_own_broadcasts(program)
    assert _most_readers(program.eqns) > 1
    assert _most_readers(own.eqns) == 1
    leaves = jax.tree.leaves(args)
    one, other = (evaluate(p.to_jaxpr(), leaves) for p in (program, own))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


def _most_readers(eqns) -> int:
    """Of a broadcast without new axes, here and in the bodies of loops."""
    counts = collections.Counter(v for eqn in eqns for v in set(reads(eqn)))
    most = 0
    for eqn in eqns:
        if eqn.primitive.name == "scan":
            body = open_jaxpr(eqn.params["jaxpr"])[0]
            most = max(most, _most_readers(body.eqns))
        elif eqn.primitive.name == "broadcast_in_dim":
            [operand], [result] = eqn.invars, eqn.outvars
            if operand.aval.ndim == result.aval.ndim:
                most = max(most, counts[result])
    return most
