"""Which value of the program a buffer of XLA's holds."""

import jax.numpy as jnp
import pytest
from steps import traced

from coop_jax.graph.buffer_to_value import stored_value
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import consumers_of
from coop_jax.xla.buffers_from_schedule import StoredBuffer


def found(function, fused, named, shape=(8, 8)):
    """The primitive that makes what a buffer of a matrix's size holds.

    Arguments:
        fused: primitives inside of the fusion that makes it.
        named: the one whose name the fusion carries.
    """
    program = traced(function, jnp.ones(shape), jnp.ones(shape)).program
    names = [eqn.primitive.name for eqn in program.eqns]
    inside = {i for i, name in enumerate(names) if name in fused}
    size = aval_bytes(program.eqns[names.index(named)].outvars[0].aval)
    buffer = StoredBuffer(0, (), size, 0, "temp")
    consumers = consumers_of(program)
    value = stored_value(program, consumers, buffer, [names.index(named)], inside, 1)
    return next(name for i, name in enumerate(names) if value in program.eqns[i].outvars)


def activated(x, w):
    return jnp.sin(jnp.tanh(x @ w))


@pytest.mark.parametrize(
    ("fused", "holds"),
    [
        (set(), "dot_general"),  # No fusion at all.
        ({"dot_general"}, "dot_general"),
        ({"dot_general", "tanh"}, "tanh"),
        ({"dot_general", "tanh", "sin"}, "sin"),
    ],
)
def test_what_is_read_outside_of_the_fusion_is_held(fused, holds):
    assert found(activated, fused, "dot_general") == holds


def test_a_copy_that_left_no_name_hides_nothing():
    """As in the gradient of `jax.nn.gelu`: the copy is gone, and what reads it is fused."""

    def copied(x, w):
        return jnp.sin(jnp.tanh(jnp.copy(x @ w)))

    assert found(copied, {"dot_general", "tanh"}, "dot_general") == "tanh"
    assert found(copied, {"dot_general"}, "dot_general") == "dot_general"

    def copied_for_another(x, w):
        made = jnp.copy(x @ w)
        return jnp.sin(jnp.tanh(made)), jnp.cos(made)

    assert (
        found(copied_for_another, {"dot_general", "tanh"}, "dot_general") == "dot_general"
    )


def test_a_result_of_the_program_is_read_outside():
    def function(x, w):
        made = x @ w
        return jnp.sin(jnp.tanh(made)), made.reshape(-1)

    assert found(function, {"dot_general", "tanh"}, "dot_general") == "dot_general"
