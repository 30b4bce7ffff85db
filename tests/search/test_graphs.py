"""Graphs with scratch that was learnt: as if built with it, and built once."""

import dataclasses
import functools
import random

import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import random_function, random_materialization
from steps import TARGET, traced

from coop_jax import backends
from coop_jax.graph.stored_values import tag
from coop_jax.plan.planner import planner_options
from coop_jax.search import graphs as module
from coop_jax.search.graphs import Graphs

OPTIONS = planner_options("search", TARGET.alignment_bytes)


SUMS = -1  # In place of a seed: a step with wide fusions.


def sums_over_layers(weights, x):
    """Every layer adds to a sum, all of which XLA computes in one fusion."""
    total = jnp.zeros_like(x)
    for weight in weights:
        x = jnp.tanh(x @ weight)
        total = total + x @ weight.T
    return jnp.sin(total) @ weights[0]


@functools.cache
def stored_program(seed):
    if seed == SUMS:
        arguments = [jnp.ones((64, 64))] * 12, jnp.ones((4096, 64))
        step = traced(sums_over_layers, *arguments)
        compiled = step.compile(tag(step.program))
        return step.program, backends.stored_values(step.program, compiled)
    function, args = random_function(seed, 60)
    program = traced(function, *args).program
    stored = random_materialization(program, seed, 0.2)
    return program, dataclasses.replace(stored, source="compiled")


def graphs_for(seed, scratch=None):
    """The graphs of a program; with its scratch, given to the stored values."""
    program, stored = stored_program(seed)
    stored = stored.with_scratch({3: 640}).with_scratch(scratch or {})
    return Graphs(program, stored, TARGET, OPTIONS)


def random_scratch(seed, size=1 << 16):
    choose = random.Random(seed)
    return {choose.randrange(60): choose.randrange(size) for _ in range(9)} | {2: 7, 3: 9}


@pytest.mark.parametrize("seed", [SUMS, *range(12)])
def test_learnt_scratch_is_that_of_the_stored_values(seed):
    scratch = random_scratch(seed)
    graphs = graphs_for(seed)
    assert len(graphs.with_scratch({})) == (4 if seed == SUMS else 2)
    found = graphs.with_scratch(scratch)
    expected = graphs_for(seed, scratch).with_scratch({})
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert [op.equations for op in one.operations] == [
            op.equations for op in other.operations
        ]
        assert one.stored.workspace_bytes == other.stored.workspace_bytes
        assert one.stored.partial_results.keys() == other.stored.partial_results.keys()
        for name, values in one.core.arrays().items():
            np.testing.assert_array_equal(values, other.core.arrays()[name], name)


@pytest.mark.parametrize("seed", [SUMS, 0])
def test_each_graph_is_built_once(seed, monkeypatch):
    built = []

    def build_graph(*args, **options):
        built.append(options)
        return original(*args, **options)

    original = module.build_graph
    monkeypatch.setattr(module, "build_graph", build_graph)
    graphs = graphs_for(seed)
    bounding = graphs.least(graphs.with_scratch({}))
    before = len(built)
    for number in range(3):
        graphs.with_scratch(random_scratch(number, 64))
    assert len(built) == before
    assert len(bounding) <= before
