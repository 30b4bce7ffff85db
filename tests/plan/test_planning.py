"""Planning without JAX: the builder, planning, metrics, and what errors say."""

import numpy as np
import pytest
from core.programs import chain

from coop_jax import planning, targets
from coop_jax.planning import Graph, InfeasiblePoolError, PlanOptions, named_graph

KIB = 1024
TENSORS = {
    "w": {"bytes": KIB, "pinned": True},
    "a": {"bytes": 4 * KIB},
    "b": {"bytes": 4 * KIB},
    "c": {"bytes": 4 * KIB},
    "loss": {"bytes": 64, "output": True},
}
OPERATIONS = [
    {"seconds": 1.0, "inputs": ["w"], "outputs": ["a"], "workspace_bytes": KIB},
    {"seconds": 2.0, "inputs": ["a"], "outputs": ["b"]},
    {"seconds": 3.0, "inputs": ["b"], "outputs": ["c"]},
    {"seconds": 1.0, "inputs": ["c", "a"], "outputs": ["loss"]},
]


@pytest.fixture
def graph():
    return named_graph(TENSORS, OPERATIONS)[0]


def test_named_graph_says_the_same_as_arrays(graph):
    arrays = Graph(
        op_seconds=np.array([1.0, 2.0, 3.0, 1.0]),
        op_workspace_bytes=np.array([KIB, 0, 0, 0]),
        op_recomputable=np.ones(4, bool),
        op_inputs_ptr=np.array([0, 1, 2, 3, 5]),
        op_inputs=np.array([0, 1, 2, 3, 1]),
        op_outputs_ptr=np.arange(5),
        op_outputs=np.array([1, 2, 3, 4]),
        tensor_bytes=np.array([KIB, 4 * KIB, 4 * KIB, 4 * KIB, 64]),
        tensor_external=np.zeros(5, bool),
        tensor_pinned=np.array([True, False, False, False, False]),
        tensor_output=np.array([False, False, False, False, True]),
        in_place=np.zeros((0, 3), np.int64),
        overwrites=np.zeros((0, 3), np.int64),
    )
    assert named_graph(TENSORS, OPERATIONS)[1] == tuple(TENSORS)
    for field in (
        "op_seconds",
        "op_workspace_bytes",
        "tensor_bytes",
        "tensor_pinned",
        "producer",
        "last_use",
        "evictable",
    ):
        np.testing.assert_array_equal(getattr(graph, field), getattr(arrays, field))
    plans = [planning.plan_graph(g, 10 * KIB) for g in (graph, arrays)]
    np.testing.assert_array_equal(plans[0].steps, plans[1].steps)


def test_in_place_overwrites_and_releases_by_name():
    graph, names = named_graph(
        {
            "w": {"bytes": 64, "pinned": True},
            "w2": {"bytes": 64, "pinned": True},
            "x": {"bytes": 64},
            "y": {"bytes": 64},
        },
        [
            {"seconds": 1, "outputs": ["x"]},
            {"seconds": 1, "inputs": ["x"], "outputs": ["y"], "in_place": [("x", "y")]},
            {
                "seconds": 1,
                "inputs": ["w", "y"],
                "outputs": ["w2"],
                "overwrites": [("w", "w2")],
                "releases": ["x", "y"],
                "recomputable": False,
            },
        ],
    )
    schedule = planning.plan_graph(graph, 128, "coop")
    placed = {names[row[1]]: row[2] for row in schedule.placements.tolist()}
    assert placed == {"x": 64, "y": 64, "w2": 0}


@pytest.mark.parametrize("policy", planning.POLICIES)
def test_plans_are_valid_and_measured(graph, policy):
    reference = planning.unconstrained(graph, policy).statistics.peak_bytes
    smallest = planning.minimum_pool(graph, policy, overhead_limit=10.0)
    bound, operation = planning.lower_bound(graph)
    assert bound <= smallest.capacity < reference
    assert operation == 3
    schedule = planning.plan_graph(graph, smallest.capacity, policy, overhead_limit=10.0)
    assert planning.validate(graph, schedule) == []
    measured = planning.metrics(schedule, reference)
    assert measured.memory_ratio == smallest.capacity / reference
    assert measured.compute_overhead == pytest.approx(8 / 7)
    assert (measured.forced_evictions, measured.recomputations) == (1, 1)
    # The search decides beforehand: no allocation ever has to look for memory.
    assert measured.searches == (0 if policy == "search" else 1)
    block_share = 4 * KIB / smallest.capacity * measured.searches
    assert measured.fragmentation == pytest.approx(
        measured.fragmentation_block_used + block_share
    )


def test_options_as_a_whole_are_the_same_as_by_keyword(graph):
    by_name = planning.plan_graph(graph, 16 * KIB, "coop", alignment=512)
    as_whole = planning.plan_graph(
        graph, 16 * KIB, PlanOptions(policy="coop", alignment=512)
    )
    np.testing.assert_array_equal(by_name.placements, as_whole.placements)


def test_a_pool_that_is_too_small(graph):
    with pytest.raises(
        InfeasiblePoolError,
        match=r"`planning.plan_graph\(pool_bytes=...\)` is too small for policy "
        r"'coop': operation 1 asks for 4096 bytes .* Got 8192. Ask",
    ) as raised:
        planning.plan_graph(graph, 8 * KIB, "coop")
    assert raised.value.failure.reason == "out_of_memory"
    with pytest.raises(InfeasiblePoolError, match="placing the graph's inputs asks"):
        planning.plan_graph(graph, 64, "coop")


def test_an_overhead_that_is_too_large():
    with pytest.raises(
        InfeasiblePoolError,
        match=r"later than 3 times the program's seconds \(`overhead_limit`\). Got 320",
    ):
        planning.plan_graph(chain(64, 64).graph(), 320, "dtr", overhead_limit=3.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: planning.plan_graph(g, -1), ValueError,
         r"`planning.plan_graph\(pool_bytes=...\)` must not be negative. Got -1"),
        (lambda g: planning.plan_graph(g, 1e6), TypeError,
         r"`planning.plan_graph\(pool_bytes=...\)` must be a whole number .* 1000000.0"),
        (lambda g: planning.plan_graph(g, True), TypeError, "Got True. Round it"),
        (lambda g: planning.plan_graph(g, 9, "best"), ValueError,
         r"search, lookahead, coop, dtr, dte or a `planning.PlanOptions`. Got 'best'"),
        (lambda g: planning.plan_graph(g, 9, PlanOptions(), seed=1), ValueError,
         r"must not come with further options. Got 'seed' as well. Put it into"),
        (lambda g: planning.plan_graph("g", 9), TypeError,
         r"`planning.plan_graph\(graph=...\)` must be a `planning.Graph`. Got str"),
        (lambda g: planning.validate(g, 9), TypeError,
         r"`planning.validate\(schedule=...\)` must be .* Got int. Make one"),
        (lambda g: planning.lower_bound(g, 3), ValueError, "power of two, got 3"),
        (lambda g: planning.metrics(planning.unconstrained(g), 0), ValueError,
         r"`planning.metrics\(reference_bytes=...\)` must be positive. Got 0. Pass"),
    ],
)  # fmt: skip
def test_refuses(graph, call, error, message):
    with pytest.raises(error, match=message):
        call(graph)


@pytest.mark.parametrize(
    ("tensors", "operations", "message"),
    [
        ({"x": {"size": 3}}, [],
         r"the keys of tensor 'x' must be among bytes, .* Got 'size'. Correct"),
        ({"x": {}}, [], r"tensor 'x' must have 'bytes'. Got the keys \[\]. Add it"),
        ({}, [{"seconds": 1, "output": []}],
         r"the keys of operation 0 must be among .* Got 'output'"),
        ({}, [{"inputs": []}], "operation 0 must have 'seconds'"),
        ({}, [{"seconds": 1, "inputs": ["y"]}],
         r"must name tensors of `tensors`. Got 'y' in operation 0. Add it"),
        ({"x": {"bytes": -1}}, [],
         r"'bytes' of tensor 'x' must be in \[0, 2\*\*48\). Got -1. Give bytes"),
    ],
)  # fmt: skip
def test_named_graph_refuses(tensors, operations, message):
    with pytest.raises(ValueError, match=message):
        named_graph(tensors, operations)


def test_targets_by_name():
    assert targets.named("A100").platform == "gpu"
    with pytest.raises(ValueError, match=r"`target=` must be one of .* Got 'a1'"):
        targets.named("a1")
