"""The frontier of an iteration against all choices that there are."""

import random

import jax
import jax.numpy as jnp
import pytest
from core.bodies import Body
from oracles.retention import corners
from scanned_steps import stacked_recurrent

from coop_jax.base import _compat
from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.frontier import frontier
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.pairs import find_pairs
from coop_jax.targets import named
from coop_jax.trace.costs import aval_bytes, seconds_again
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again

TARGET = named("cpu")


def random_iterations(seed):
    """Iterations of a loop with a random body of a few values of random sizes."""
    choose = random.Random(seed)
    operations = [jnp.sin, jnp.tanh, lambda x: x * 2, lambda x: x * x, jnp.exp]

    def body(carry, x):
        values = [carry, x]
        for _ in range(choose.randint(2, 5)):
            a, b = choose.choices(values, k=2)
            made = choose.choice(operations)(a)
            if choose.random() < 0.5:
                made = made * b if choose.random() < 0.5 else (made @ b)
            values.append(made)
        return carry + values[-1], None

    def loss(x, xs):
        state = choose.getstate()

        def same(carry, x):
            choose.setstate(state)
            return body(carry, x)

        return jax.lax.scan(same, x, xs)[0].sum()

    args = jnp.ones((8, 8)), jnp.ones((3, 8, 8))
    program = TracedStep.trace(jax.grad(loss, (0, 1)), {}, args, {}).program
    pairs = find_pairs(program)
    return [Iteration.of(pair, program.invars, TARGET) for pair in pairs]


def values_of(iteration):
    made = [v for eqn in iteration.forward for v in writes(eqn)]
    return [*iteration.bytes_if_kept, *made]


def body_of(iteration):
    values = values_of(iteration)
    makers = {v: i for i, eqn in enumerate(iteration.forward) for v in writes(eqn)}
    anyway = iteration.stacked_anyway
    return Body(
        [
            0 if v in anyway else iteration.bytes_if_kept.get(v, aval_bytes(v.aval))
            for v in values
        ],
        [makers.get(v, -1) for v in values],
        [iteration.seconds_again(eqn, TARGET) for eqn in iteration.forward],
        [may_run_again(eqn) for eqn in iteration.forward],
        [[values.index(v) for v in reads(eqn)] for eqn in iteration.forward],
        [values.index(v) for v in iteration.needed],
        2 / TARGET.bytes_per_second,
    )


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_frontier_is_that_of_all_choices(first):
    numbers = []
    for seed in range(first, first + 10):
        for iteration in random_iterations(seed):
            if len(iteration.forward) > 12:
                continue
            body, values = body_of(iteration), values_of(iteration)
            expected, hull = corners(body), frontier(iteration, TARGET)
            numbers.append(len(expected))
            for retained, runs in zip(hull, expected, strict=True):
                size, seconds = body.cost(runs)
                again = sum(body.seconds[run] for run in runs)
                forward = iteration.forward
                assert retained.recomputed == tuple(forward[run] for run in sorted(runs))
                assert retained.values == {values[v] for v in body.kept(runs)}
                assert retained.kept_bytes == size
                assert retained.seconds == pytest.approx(float(seconds), rel=1e-12)
                assert retained.recompute_seconds == pytest.approx(again, rel=1e-12)
    assert len(numbers) > 4
    assert sum(number > 1 for number in numbers) > 1


def test_an_inner_loop_that_runs_again_reads_its_weights_in_every_iteration():
    """A gated layer over time: its weights are many times what an iteration stacks."""
    step, args = stacked_recurrent(length=64)
    program = TracedStep.trace(step, {}, args, {}).program
    [pair] = find_pairs(program)
    iteration = Iteration.of(pair, program.invars, TARGET)
    first, *_, last = frontier(iteration, TARGET)
    names = [[eqn.primitive.name for eqn in each.recomputed] for each in (first, last)]
    assert "scan" not in names[0]
    assert "scan" in names[1]
    [loop] = [eqn for eqn in last.recomputed if eqn.primitive.name == "scan"]
    body, _ = _compat.open_jaxpr(loop.params["jaxpr"])
    read = sum(aval_bytes(v.aval) for v in body.invars)
    assert seconds_again(loop, TARGET) >= 64 * read / TARGET.bytes_per_second


@pytest.mark.parametrize("length", [2, 20])
def test_seconds_of_a_loop_are_those_of_its_iterations(length):
    def product(x):
        return jnp.tanh(x @ x)

    def seconds_of(fn):
        jaxpr = jax.make_jaxpr(fn)(jnp.ones((64, 64))).jaxpr
        return sum(seconds_again(eqn, TARGET) for eqn in jaxpr.eqns)

    once = seconds_of(product)
    looped = seconds_of(lambda x: jax.lax.fori_loop(0, length, lambda _, x: product(x), x))
    assert looped == pytest.approx(length * once, rel=0.01)
    branched = seconds_of(lambda x: jax.lax.cond(x[0, 0] > 0, product, lambda x: x, x))
    assert branched == pytest.approx(once, rel=0.01)
    until = seconds_of(lambda x: jax.lax.while_loop(lambda x: x[0, 0] > 0, product, x))
    assert until == pytest.approx(once, rel=0.01)


def test_a_mask_of_a_dropout_is_kept_longer_than_a_wide_product():
    """It takes a quarter of the bytes; random bits take longer than 512 products a word."""
    width = 512

    def loss(weights, x, key):
        def body(x, entry):
            w, key = entry
            kept = jax.random.bernoulli(key, 0.9, x.shape)
            return x + jnp.where(kept, jnp.tanh(x @ w), 0.0), None

        keys = jax.random.split(key, 4)
        return jnp.mean(jax.lax.scan(body, x, (weights, keys))[0] ** 2)

    args = jnp.ones((4, width, width)), jnp.ones((64, width)), jax.random.key(0)
    program = TracedStep.trace(jax.grad(loss), {}, args, {}).program
    [pair] = find_pairs(program)
    corners = frontier(Iteration.of(pair, program.invars, TARGET), TARGET)
    again = [{eqn.primitive.name for eqn in corner.recomputed} for corner in corners]
    assert any("dot_general" in names and "random_bits" not in names for names in again)
    assert not any("random_bits" in n and "dot_general" not in n for n in again)


def test_what_the_backward_body_alone_needs_takes_no_time_there():
    """The cosine is of the gradient of the sine, which the forward body needs."""

    def loss(x, xs):
        return jnp.sum(jax.lax.scan(lambda c, x: (jnp.sin(c + x), None), x, xs)[0])

    args = jnp.ones((8, 8)), jnp.ones((3, 8, 8))
    program = TracedStep.trace(jax.grad(loss), {}, args, {}).program
    [pair] = find_pairs(program)
    iteration = Iteration.of(pair, program.invars, TARGET)
    prices = {
        eqn.primitive.name: iteration.seconds_again(eqn, TARGET)
        for eqn in iteration.forward
    }
    assert prices["sin"] > 0
    assert prices["cos"] == 0
