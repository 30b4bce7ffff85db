"""Sums that XLA scatters into: found in the program, stored once, in place."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_CUDA, TARGET, traced

from coop_jax import backends
from coop_jax.graph import stored_values
from coop_jax.graph.scatter_add import accumulations
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import planner_options, unconstrained
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

TOKENS, WIDTH, VOCABULARY = 64, 16, 8192


def loss(table, tokens):
    """A language model's ends: tied embeddings, and the picked logits of a loss."""
    hidden = jnp.tanh(table[tokens])
    logits = hidden @ table.T
    picked = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


@pytest.fixture(scope="module")
def step():
    table = jnp.ones((VOCABULARY, WIDTH)) * 0.1
    tokens = jnp.arange(TOKENS) % VOCABULARY
    gradient = jax.grad(lambda table, tokens: 10 * loss(table, tokens))
    return traced(lambda *args: gradient(*args) * 0.5, table, tokens)


def test_the_sums_of_a_language_model(step):
    found = accumulations(step.program)
    shapes = sorted(total.aval.shape for total, _ in found.values())
    assert shapes == [(TOKENS, VOCABULARY), (VOCABULARY, WIDTH)]
    for scattered, (total, other) in found.items():
        assert scattered.aval.shape == total.aval.shape == other.aval.shape


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: jnp.ones_like(x).at[i].add(1.0) + jnp.sin(x),  # not into zeros
        lambda x, i: jnp.zeros_like(x).at[i].add(1.0),  # a result itself
        lambda x, i: jnp.sin(jnp.zeros_like(x).at[i].add(1.0)) + jnp.sin(x),  # not added
        lambda x, i: jnp.zeros_like(x).at[i].add(1.0) + 1.0,  # to a constant
    ],
)
def test_other_scatters_are_values_of_their_own(function):
    program = traced(function, jnp.ones(8), jnp.arange(3)).program
    assert accumulations(program) == {}


def test_the_sum_is_what_is_stored_and_it_is_made_in_place(step):
    compiled = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, compiled)
    graph = build_graph(step.program, found, TARGET)
    sums = dict(accumulations(step.program).values())
    logits = next(total for total in sums if total.aval.shape == (TOKENS, VOCABULARY))
    assert logits in found.stored_bytes
    assert accumulations(step.program).keys().isdisjoint(found.stored_bytes)
    pairs = {(i, o) for _, i, o in graph.core.arrays()["in_place"].tolist()}
    assert (graph.index_of[sums[logits]], graph.index_of[logits]) in pairs
    # Logits and their gradient, once each: with the scatter's result they would be three.
    planned = unconstrained(graph, planner_options("search", 64)).statistics
    temporaries = memory_figures(compiled).temp_bytes
    assert planned.max_live_bytes == pytest.approx(temporaries, rel=0.1)


@NEEDS_CUDA
def test_on_a_gpu_nothing_but_scatters_writes_over_an_operand():
    shapes = (
        jax.ShapeDtypeStruct((VOCABULARY, WIDTH), jnp.float32),
        jax.ShapeDtypeStruct((TOKENS, VOCABULARY // 8), jnp.int32),
    )

    def gradient(table, tokens):  # One row of tokens after the other.
        return 0.5 * jax.grad(lambda table: loss(table, tokens.reshape(-1)))(table)

    step = traced(
        gradient, *absent_devices.placed(shapes, absent_devices.named_device("h200"))
    )
    compiled = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, compiled)
    assert found.in_place == "scatters"
    graph = build_graph(step.program, found, TARGET)
    sums = dict(accumulations(step.program).values())
    pairs = graph.core.arrays()["in_place"].tolist()
    assert pairs
    for _, operand, result in pairs:
        assert sums[graph.tensors[result]] is graph.tensors[operand]
    planned = unconstrained(graph, planner_options("search", 256)).statistics
    temporaries = memory_figures(compiled).temp_bytes
    assert planned.max_live_bytes == pytest.approx(temporaries, rel=0.05)
