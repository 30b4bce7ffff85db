"""Early order: an order that can be run, that keeps what must not be reordered."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from core.programs import programs
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import TARGET, mlp_arguments, mlp_step, traced

from coop_jax.graph.memory_aware_order import early_order
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules

LAYERS = 6


def peak_bytes(inputs, outputs, tensor_bytes, order):
    """Tensors are there from the operation that makes them to the last that reads them."""
    last_read = {t: at for at, k in enumerate(order) for t in inputs[k]}
    alive, peak = {}, 0
    for at, k in enumerate(order):
        alive.update((t, tensor_bytes[t]) for t in outputs[k])
        peak = max(peak, sum(alive.values()))
        alive = {t: size for t, size in alive.items() if last_read.get(t, -1) > at}
    return peak


def late_weight_gradients():
    """Backward: gradients 1.. of the activations first, those of the weights behind."""
    inputs = [[k] for k in range(LAYERS)] + [[k] for k in range(LAYERS)]
    outputs = [[k + 1] for k in range(LAYERS)] + [[LAYERS + 1 + k] for k in range(LAYERS)]
    sizes = [100] * (LAYERS + 1) + [1] * LAYERS
    return inputs, outputs, sizes


def test_what_frees_memory_runs_as_soon_as_it_can():
    inputs, outputs, sizes = late_weight_gradients()
    order = early_order(inputs, outputs, sizes, ())
    for k in range(LAYERS):  # Once the next gradient is there, its own can be freed.
        assert order.index(LAYERS + k) <= order.index(k) + 1
    late = peak_bytes(inputs, outputs, sizes, range(2 * LAYERS))
    assert late >= 100 * LAYERS
    assert peak_bytes(inputs, outputs, sizes, order) <= 200 + LAYERS


@given(programs(), st.data())
@settings(deadline=None, max_examples=200)
def test_every_operation_once_behind_what_it_needs(program, data):
    inputs = [op.inputs for op in program.ops]
    outputs = [op.outputs for op in program.ops]
    count = len(inputs)
    before = [
        tuple(sorted(data.draw(st.tuples(*[st.integers(0, count - 1)] * 2))))
        for _ in range(3 if count else 0)
    ]
    before = [(a, b) for a, b in before if a < b]
    kernel = [k if k else -1 for k in sorted(data.draw(st.integers(0, 5)) for _ in inputs)]
    order = early_order(inputs, outputs, program.tensor_bytes, before, kernel=kernel)
    assert sorted(order) == list(range(count))
    grouped = [kernel[k] for k in order if kernel[k] >= 0]
    assert len(list(itertools.groupby(grouped))) == len(set(grouped))
    at = {k: i for i, k in enumerate(order)}
    producers = {t: k for k, made in enumerate(outputs) for t in made}
    for k, read in enumerate(inputs):
        assert all(at[producers[t]] < at[k] for t in read if t in producers)
    assert all(at[a] < at[b] for a, b in before)


def test_the_graph_keeps_its_values_and_its_overwrites():
    step = traced(mlp_step, *mlp_arguments(batch=64, width=256), donate_argnums=0)
    graphs = [
        build_graph(step.program, from_rules(step.program), TARGET, early=early)
        for early in (False, True)
    ]
    named = [
        {op.equations: {graph.tensors[t] for t in op.inputs} for op in graph.operations}
        for graph in graphs
    ]
    assert named[0] == named[1]
    assert set(graphs[0].tensors) == set(graphs[1].tensors)
    overwrites = [graph.core.arrays()["overwrites"] for graph in graphs]
    assert len(overwrites[0]) == len(overwrites[1]) == 8
    for graph, rows in zip(graphs, overwrites, strict=True):
        for op, old, _ in rows.tolist():
            readers = [k for k, o in enumerate(graph.operations) if old in o.inputs]
            assert max(readers) <= op


def test_effects_keep_their_order():
    def step(x):
        jax.debug.print("first {}", x.sum())
        y = jnp.sin(x) @ x
        jax.debug.print("second {}", y.sum())
        return y

    program = traced(step, jnp.ones((8, 8))).program
    graph = build_graph(program, from_rules(program), TARGET, early=True)
    effects = [op.anchor for op in graph.operations if program.eqns[op.anchor].effects]
    assert len(effects) == 2
    np.testing.assert_array_equal(effects, sorted(effects))


def test_what_only_enables_another_to_free_is_not_put_off():
    """A chain that frees a little at every step waits for a sum over much more."""
    length, parts = 20, range(4)
    chain = range(5, 6 + length)
    sizes = [8, 8, 8, 8, 8, *(100 - k for k in range(length + 1)), 8, 1]
    source, last, total = 4, len(sizes) - 2, len(sizes) - 1
    inputs = [[] for _ in parts] + [[]] + [[t] for t in chain[:-1]]
    outputs = [[t] for t in parts] + [[source, chain[0]]] + [[t] for t in chain[1:]]
    inputs += [[source], [*parts, last]]  # The first is as large as what it is made of.
    outputs += [[last], [total]]
    order = early_order(inputs, outputs, sizes, [])
    assert order[-1] == length + 4  # The end of the chain.


def test_what_waits_for_a_scalar_is_not_put_off_if_scalars_count_for_nothing():
    """Two moments, a value in between, and updates that need a bias correction."""
    inputs = [[], [], [], [], [0, 3], [1, 3]]
    outputs = [[0], [1], [2], [3], [4], [5]]
    sizes = [0, 0, 100, 4, 0, 0]
    assert early_order(inputs, outputs, sizes, []) == [0, 1, 2, 3, 4, 5]
    assert early_order(inputs, outputs, sizes, [], negligible_bytes=4)[-1] == 2


def test_what_one_kernel_makes_stays_together():
    """Moments, and the updated weight, which waits for the last reader of the old one."""
    inputs = [[], [], [0], [0], [2, 3]]  # gradient, reader, two moments, weight
    outputs = [[0], [1], [2], [3], [4]]
    sizes, before = [100, 10, 0, 0, 0], [(1, 4)]
    assert early_order(inputs, outputs, sizes, before) == [0, 2, 3, 1, 4]
    kernel = [-1, -1, 7, 7, 7]
    assert early_order(inputs, outputs, sizes, before, kernel=kernel) == [0, 1, 2, 3, 4]
