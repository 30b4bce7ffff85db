"""Forward pass: where it ends, and what belongs to it behind that point."""

import jax
import jax.numpy as jnp
import pytest
from steps import traced

from coop_jax.trace.forward_pass import (
    derived_from_inputs,
    end_of_forward_pass,
    forward_pass,
)
from coop_jax.trace.program import reads, writes


def layers(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(jnp.sinh(x))


def arguments():
    return [jnp.ones((4, 4))] * 3, jnp.ones((2, 4))


def names(program, indices):
    return [program.eqns[index].primitive.name for index in indices]


def ends(program):
    """By peak."""
    count = len(program.eqns)
    return [end_of_forward_pass(program.eqns, peak) for peak in range(count)]


def test_the_end_does_not_depend_on_where_the_peak_is():
    def step(weights, x):
        value, gradients = jax.value_and_grad(layers)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    program = traced(step, *arguments()).program
    [end] = set(ends(program))
    early = names(program, range(end + 1))
    assert early.count("dot_general") == 3
    assert "sinh" in early
    assert "dot_general" in names(program, range(end + 1, len(program.eqns)))


def test_of_two_gradients_the_one_of_the_peak():
    def step(weights, x):
        first = jax.grad(layers)(weights, x)
        return jax.grad(layers)(jax.tree.map(jnp.add, weights, first), x)

    program = traced(step, *arguments()).program
    first, second = sorted(set(ends(program)))
    assert names(program, range(first + 1)).count("dot_general") == 3
    # Three of the first way forward and five of its way back.
    assert names(program, range(second + 1)).count("dot_general") == 3 + 5 + 3


def test_a_gradient_in_the_loss_is_on_the_way_forward():
    def penalty(weights, x):
        return jnp.sum(jax.grad(layers, argnums=1)(weights, x) ** 2)

    program = traced(jax.grad(penalty), *arguments()).program
    [end] = set(ends(program))
    early = names(program, range(end + 1))
    assert early.count("dot_general") == 6


def test_a_step_without_a_gradient_ends_at_its_peak():
    program = traced(layers, *arguments()).program
    assert ends(program) == list(range(len(program.eqns)))


def test_numbers_and_inputs_are_summed_behind_the_point():
    """What reads a value of a layer there is on the way back."""

    def step(weights, x):
        def loss(weights):
            y, added = x, []
            for weight in weights:
                y = jnp.tanh(y @ weight)
                added.append(jnp.max(y))
            return jnp.mean(y) + sum(added)

        return jax.value_and_grad(loss)(weights)

    program = traced(step, *arguments()).program
    last = max(i for i, e in enumerate(program.eqns) if e.primitive.name == "tanh")
    behind = [i for i in forward_pass(program.eqns, last) if i > last]
    assert "add" in names(program, behind)
    derived = derived_from_inputs(program.eqns[: last + 1])
    made = {v for eqn in program.eqns[: last + 1] for v in writes(eqn)} - derived
    read = [v for i in behind for v in reads(program.eqns[i])]
    assert all(v.aval.size == 1 for v in read if v in made)


@pytest.mark.parametrize("after", [0, 3])
def test_all_before_the_point_is_forward(after):
    program = traced(jax.grad(layers), *arguments()).program
    assert forward_pass(program.eqns, after)[: after + 1] == list(range(after + 1))
