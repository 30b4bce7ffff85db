"""Wide fusions: partial results are stored where they let a step need less."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import random_function, random_materialization
from steps import TARGET, mlp_arguments, mlp_step, traced

import coop_jax
from coop_jax import backends
from coop_jax.base._compat import Literal
from coop_jax.graph.stored_values import from_rules, tag
from coop_jax.graph.wide_fusions import partial_results, with_partial_results
from coop_jax.plan.planner import planner_options
from coop_jax.search.graphs import graphs_of
from coop_jax.trace.costs import is_elementwise, is_fusible
from coop_jax.trace.program import writes
from coop_jax.xla.memory_figures import memory_figures

LAYERS = 12
ROWS, WIDTH = 4096, 64
VALUE = ROWS * WIDTH * 4


def sums_over_layers(weights, x):
    """Every layer adds to a sum, all of which XLA computes in one fusion."""
    total = jnp.zeros_like(x)
    for weight in weights:
        x = jnp.tanh(x @ weight)
        total = total + x @ weight.T
    return jnp.sin(total) @ weights[0]


def arguments():
    numbers = np.random.default_rng(0)
    weights = [
        jnp.asarray(numbers.normal(size=(WIDTH, WIDTH)) / 8, jnp.float32)
        for _ in range(LAYERS)
    ]
    return weights, jnp.asarray(numbers.normal(size=(ROWS, WIDTH)), jnp.float32)


def computed_from(program, stored, made, var):
    """Slow: the values in buffers of a plan that a value is computed from."""
    if isinstance(var, Literal) or var not in made or var in program.outvars:
        return set()  # Arguments, constants and results have buffers of their own.
    eqn = made[var]
    if var in stored or not is_fusible(eqn):
        return {var}
    return set().union(*(computed_from(program, stored, made, v) for v in eqn.invars))


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_computed_from_more_than_two_of_its_size(seed):
    function, args = random_function(seed, 60)
    program = traced(function, *args).program
    stored = random_materialization(program, seed, 0.2)
    found = partial_results(program, stored)
    made = {v: eqn for eqn in program.eqns for v in writes(eqn)}
    kept = {*stored.stored_bytes, *found.values()}
    for index, v in found.items():
        assert v in writes(program.eqns[index])
        assert v not in stored.stored_bytes
        assert v not in program.outvars
    for v, eqn in made.items():
        if is_elementwise(eqn) and v not in kept and v not in program.outvars:
            size = stored.bytes_of(v)
            read = computed_from(program, kept, made, v)
            assert sum(min(size, stored.bytes_of(u)) for u in read) <= 2 * size


def test_random_programs_have_some():
    counts = []
    for seed in range(30):
        function, args = random_function(seed, 60)
        program = traced(function, *args).program
        stored = random_materialization(program, seed, 0.2)
        counts.append(len(partial_results(program, stored)))
    assert sum(map(bool, counts)) > 10


def test_a_sum_over_layers_needs_two_of_them_at_once():
    weights, x = arguments()
    as_written = jax.jit(sums_over_layers).lower(weights, x).compile()
    temporary = as_written.memory_analysis().temp_size_in_bytes
    assert temporary >= LAYERS * VALUE  # XLA keeps what every layer adds to the end.
    fixed = memory_figures(as_written).total_bytes - temporary
    step = coop_jax.remat_train_step(
        sums_over_layers, budget=fixed + 6 * VALUE, donate_argnums=()
    )
    plan = step.plan(weights, x)
    assert plan.measured_bytes <= fixed + 6 * VALUE
    assert plan.recomputed_flops == 0
    assert plan.num_fences > 0
    np.testing.assert_array_equal(step(weights, x), as_written(weights, x))


def test_other_steps_are_planned_as_xla_fuses_them():
    step = traced(mlp_step, *mlp_arguments(layers=4))
    options = planner_options("search", TARGET.alignment_bytes)
    compiled = step.compile(tag(step.program))
    stored = backends.stored_values(step.program, compiled)
    graphs = graphs_of(step.program, stored, TARGET, options)
    assert [graph.partial_results for graph in graphs] == [frozenset()] * 2


def test_by_rules_nothing_is_split():
    program = traced(sums_over_layers, *arguments()).program
    stored = from_rules(program)
    assert partial_results(program, dataclasses.replace(stored, stored_bytes={}))
    assert with_partial_results(program, stored) is stored
