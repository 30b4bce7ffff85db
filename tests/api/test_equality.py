"""A planned program, compiled, computes what the program as written does.

`test_rewrite.py` says so of programs that run equation by equation; here XLA merges, fuses
and lays out, and everything that it may do about a fence is a value that could change.
"""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from random_programs import random_function, random_schedule
from steps import TARGET, as_numpy, traced, xla_placement

from coop_jax import _ext, backends
from coop_jax.base import _compat
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph

# Operations on (4, 4) matrices, of which none is worse conditioned than 20; XLA sums in
# other orders where it fuses otherwise.
_TOLERANCE = 1e-3


def realized(step, seed, eviction_rate):
    """The step's program with fences, as the front door writes it, of a random schedule."""
    compiled = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, compiled)
    stored = dataclasses.replace(stored, workspace_bytes={})  # the schedules place none
    graph = build_graph(step.program, stored, TARGET)
    schedule = random_schedule(graph, seed, eviction_rate)
    assert _ext.validate(graph.core, schedule) == []
    placement = xla_placement(step.program, "cpu", stored)
    return placement.realize(graph, schedule).program


def assert_close(found, expected):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        a, b = as_numpy(a).astype("f8"), as_numpy(b).astype("f8")
        scale = max(1.0, float(np.max(np.abs(b), initial=0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=_TOLERANCE * scale)


def floats(function):
    """The sum of the floating point results of a random function, to differentiate."""

    def total(floats, *others):
        return sum(x.sum() for x in function(floats, *others)["f"])

    return total


TRANSFORMED = {
    "jit": lambda function: function,
    "grad": lambda function: jax.grad(floats(function)),
}


@pytest.mark.parametrize(
    "transformed", ["jit", pytest.param("grad", marks=pytest.mark.slow)]
)
@hypothesis.settings(max_examples=10)
@hypothesis.given(
    seed=st.integers(0, 2**16),
    length=st.integers(5, 25),
    eviction_rate=st.sampled_from([0.3, 1.0]),
)
def test_fences_at_random_change_no_value(transformed, seed, length, eviction_rate):
    function, arguments = random_function(seed, length)
    step = traced(TRANSFORMED[transformed](function), *arguments)
    program = realized(step, seed, eviction_rate)
    assert_close(step.jit(program)(*arguments), step.jit(step.program)(*arguments))


WRAPPED = {
    "jit": jax.jit,
    "vmap": lambda run: jax.jit(jax.vmap(run)),
    "jvp": lambda run: jax.jit(lambda *args: jax.jvp(run, args, args)),
    "grad": lambda run: jax.jit(jax.grad(lambda *args: sum(x.sum() for x in run(*args)))),
    "checkpoint": lambda run: jax.jit(
        jax.grad(lambda *args: sum(x.sum() for x in jax.checkpoint(run)(*args)))
    ),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
@hypothesis.settings(max_examples=3)
@hypothesis.given(seed=st.integers(0, 2**16))
def test_programs_with_fences_under_transformations(wrapped, seed):
    """The same equations, with fences and without, under what may stand around a step."""
    function, (first, *others) = random_function(seed, 15)
    step = traced(lambda x: function(x, *others)["f"], first)
    programs = realized(step, seed, 1.0), step.program
    argument = np.stack([first, 0.5 * first]) if wrapped == "vmap" else first
    found, expected = (
        WRAPPED[wrapped](_compat.jaxpr_as_fun(program.to_jaxpr()))(argument)
        for program in programs
    )
    assert_close(found, expected)
