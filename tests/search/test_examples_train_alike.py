"""The four loops of the examples, trained for 20 steps as written and under budgets.

Evaluated one equation at a time all bits are equal. Compiled they are where XLA fuses the
two programs in the same way. In the decoder it does not: the library that runs a softmax
has an exponential of its own, and a quotient by a repeated value may be a product with the
reciprocal. Without these two all bits are equal again (`examples/loops_rounding.py`).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops.one_by_one import bits, evaluate
from models.loops import accumulated, recurrent, simulation
from models.scanned_decoder import DecoderSizes, decoder_problem

from coop_jax import remat_train_step
from coop_jax.compile.traced_step import TracedStep

NUM_STEPS = 20
SIZES = DecoderSizes(
    layers=4, width=32, hidden=96, heads=2, groups=1, vocabulary=64, batch=4, sequence=32
)
# By name: the step, two budgets, and the largest distance of an array of the state or of a
# loss, relative to its norm. The second budget takes groups, but for the decoder.
EXAMPLES = {
    "recurrent": (lambda: recurrent(None, 200, 32, 16), ("60%", "20%"), 0.0),
    "simulation": (lambda: simulation(None, 500, 256), ("60%", "20%"), 0.0),
    "accumulation": (lambda: accumulated(None, 3, 8, 32, 64), ("70%", "50%"), 0.0),
    "decoder": (lambda: decoder_problem(SIZES), ("60%", "45%"), 1e-5),
}
OFTEN = ("recurrent",)  # The others take a minute together.
by_name = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *(() if name in OFTEN else [pytest.mark.slow]),
                *([pytest.mark.hand] if name == "decoder" else ()),
            ],
        )
        for name in EXAMPLES
    ],
)


@functools.cache
def planned(name):
    """The step, its arguments, and for each budget the planned step with its program."""
    make, budgets, _ = EXAMPLES[name]
    step, args = make()
    steps = []
    for budget in budgets:
        under = remat_train_step(step, budget=budget, donate_argnums=0)
        plan = under.plan(*args)
        assert plan.loops, "the budget is kept without a plan of loops"
        assert plan.recipe.candidate is None, "the step around the loops is planned, too"
        steps.append((under, plan.recipe.loops.program))
    return step, args, steps


def trained(step, args):
    """The state after 20 steps, and their losses, all as one list of arrays."""
    state, *batch = jax.tree.map(jnp.copy, args)
    losses = []
    for _ in range(NUM_STEPS):
        state, loss = step(state, *batch)
        losses.append(loss)
    return state, [np.asarray(x) for x in (jnp.stack(losses), *jax.tree.leaves(state))]


def distance(one, other):
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@by_name
def test_20_training_steps_have_the_losses_and_the_state_of_the_step_as_written(name):
    step, args, steps = planned(name)
    _, expected = trained(jax.jit(step, donate_argnums=0), args)
    losses, tolerance = expected[0], EXAMPLES[name][2]
    assert losses[-1] < losses[0], "training as written does not get better"
    for under, _ in steps:
        _, found = trained(under, args)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            if not np.array_equal(one, other):
                assert distance(one, other) <= tolerance


@by_name
def test_one_equation_at_a_time_all_bits_are_equal(name):
    """Also from a state that training has come to."""
    step, args, steps = planned(name)
    program = TracedStep.trace(step, {"donate_argnums": 0}, args, {}).program
    later, _ = trained(jax.jit(step), args)
    leaves = jax.tree.leaves((later, *args[1:]))
    expected = evaluate(program.to_jaxpr(), leaves)
    for _, rewritten in steps:
        found = evaluate(rewritten.to_jaxpr(), leaves)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(bits(one), bits(other))
