"""From a program to the planner's graph."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import TARGET, mlp_arguments, mlp_step, traced

from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import StoredValues, from_rules
from coop_jax.trace import costs


def graph_of(function, *arguments, stored=(), inputs_in_pool=False, **jit_options):
    step = traced(function, *arguments, **jit_options)
    values = {
        v: costs.aval_bytes(v.aval)
        for eqn in step.program.eqns
        for v in eqn.outvars
        if eqn.primitive.name in stored
    }
    found = StoredValues(values, {}, {}, 0, "rules")
    return build_graph(step.program, found, TARGET, inputs_in_pool=inputs_in_pool)


def equations(graph):
    return [
        [graph.program.eqns[i].primitive.name for i in op.equations]
        for op in graph.operations
    ]


X = jnp.ones((8, 8))


def test_unstored_equations_belong_to_every_operation_that_needs_them():
    graph = graph_of(lambda x: (jnp.sin(x) @ x, jnp.sin(x) * 2), X)
    assert equations(graph) == [["sin", "dot_general"], ["sin", "mul"]]


def test_stored_values_are_tensors():
    graph = graph_of(lambda x: (jnp.sin(x) @ x, jnp.sin(x) * 2), X, stored={"sin"})
    assert equations(graph) == [["sin"], ["dot_general"], ["mul"]]
    assert [graph.in_pool_bytes[t] for t in graph.operations[0].outputs] == [256]


def test_expensive_work_for_two_operations_is_stored_whatever_xla_said():
    graph = graph_of(lambda x: (jnp.sin(x @ x), jnp.cos(x @ x)), X)
    assert equations(graph) == [["dot_general"], ["sin"], ["cos"]]


def test_expensive_work_for_one_operation_is_fused_into_it():
    graph = graph_of(lambda x: jnp.sin(x @ x) + jnp.cos(x @ x), X)
    assert equations(graph) == [["dot_general", "sin", "cos", "add"]]


CALLS = {
    "cond": lambda x, y: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, y),
    "scan": lambda x, y: jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c @ x), y),
    "while": lambda x, y: jax.lax.while_loop(lambda c: c[0, 0] < 1, lambda c: c @ x, y),
    "sort": lambda x, y: jax.lax.sort((y, x), num_keys=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_expensive_work_is_not_fused_into_what_is_called(name):
    graph = graph_of(lambda x: CALLS[name](x, jnp.cos(x @ x)), jnp.ones((8, 8)))
    dot, call = (
        next(o for o in equations(graph) if primitive in o)
        for primitive in ("dot_general", name)
    )
    assert dot == ["dot_general", "cos"]
    assert "dot_general" not in call


def test_a_stored_view_is_the_value_it_is_a_view_of():
    graph = graph_of(lambda x: jnp.sin((x @ x).reshape(64)), X, stored={"reshape"})
    assert equations(graph) == [["dot_general"], ["reshape", "sin"]]


@pytest.mark.parametrize(("times", "tensors"), [(1, 1), (2, 2)])
def test_a_view_that_is_stored_with_more_bytes_is_a_copy(times, tensors):
    """As XLA:TPU pads what has its last dimension split."""

    def split_and_used_twice(x):
        y = jnp.sin((x @ x).reshape(8, 4, 2))
        return y.sum(), y

    step = traced(split_and_used_twice, X)
    sizes = {"dot_general": 256, "reshape": 256 * times}
    values = {
        eqn.outvars[0]: sizes[eqn.primitive.name]
        for eqn in step.program.eqns
        if eqn.primitive.name in sizes
    }
    found = StoredValues(values, {}, {}, 0, "compiled")
    graph = build_graph(step.program, found, TARGET)
    assert sorted(filter(None, graph.in_pool_bytes)) == [256, 256 * times][:tensors]


def test_arguments_and_results_lie_outside_the_pool():
    graph = graph_of(lambda x: (x @ x, x), X)
    assert graph.num_inputs == 1
    assert sum(graph.in_pool_bytes) == 0


def test_in_the_papers_model_they_lie_pinned_inside():
    step = traced(mlp_step, *mlp_arguments(layers=2), donate_argnums=0)
    graph = build_graph(step.program, from_rules(step.program), TARGET, inputs_in_pool=True)
    inputs = graph.in_pool_bytes[: graph.num_inputs]
    assert inputs == (64 * 64 * 4, 64 * 64 * 4, 512 * 64 * 4)
    assert not graph.core.evictable[: graph.num_inputs].any()


def test_an_update_overwrites_what_was_donated():
    weights, x = mlp_arguments(layers=2, width=256)
    donated = traced(mlp_step, weights, x, donate_argnums=0)
    graph = build_graph(donated.program, from_rules(donated.program), TARGET)
    kept = traced(mlp_step, weights, x)
    unbounded = build_graph(kept.program, from_rules(kept.program), TARGET)
    never = np.iinfo(np.int64).max
    assert (graph.core.deadline[:2] < never).all()
    assert (unbounded.core.deadline == never).all()


def test_a_small_counter_does_not_pin_what_derives_from_it():
    def step(count, x):
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), count), x.shape)
        return count + 1, ((x + noise) @ x).sum()

    graph = graph_of(step, jnp.int32(3), X, stored={"dot_general"}, donate_argnums=0)
    assert (graph.core.deadline == np.iinfo(np.int64).max).all()


def test_effects_are_operations_that_never_run_again():
    def function(x):
        jax.debug.print("{}", x.sum())
        return x @ x

    graph = graph_of(function, X)
    assert ["reduce_sum", "debug_print"] in equations(graph) or [
        "reduce_sum",
        "debug_callback",
    ] in equations(graph)


def test_elementwise_operations_may_work_in_place():
    graph = graph_of(
        lambda x: jnp.sin(jnp.cos(x @ x)).sum(), X, stored={"dot_general", "sin", "cos"}
    )
    assert "operations" in repr(graph)
    assert "`cos` at test_step_graph.py" in graph.describe(1)
    # cos over the product, sin over cos: three tensors fit where one does.
    from coop_jax import _ext

    schedule = _ext.unconstrained(graph.core, _ext.PlanOptions())
    assert schedule.statistics.peak_bytes == 256


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (lambda x: x @ x, (X,), 2 * 8**3),
        (lambda x: x + x, (X,), 64),
        (lambda x: jnp.tanh(x), (X,), 640),
        (lambda x: x.reshape(64), (X,), 0),
        (lambda x: x.sum(), (X,), 64),
        (
            lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=5)[0],
            (X,),
            5 * 1024,
        ),
        (
            lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME"),
            (jnp.ones((2, 3, 8, 8)), jnp.ones((4, 3, 3, 3))),
            2 * (2 * 4 * 8 * 8) * (3 * 3 * 3),
        ),
    ],
)
def test_operations_of_an_equation(function, arguments, expected):
    program = traced(function, *arguments).program
    assert sum(map(costs.flops, program.eqns)) == expected


def test_bytes_of_a_value():
    def bytes_of(x):
        return costs.aval_bytes(jax.typeof(x))

    assert bytes_of(jnp.ones((3, 5), jnp.bfloat16)) == 30
    assert bytes_of(jnp.ones(3, bool)) == 3
    assert bytes_of(jax.random.key(0)) == 8
    assert bytes_of(np.zeros((0, 7))) == 0


def test_roofline():
    program = traced(lambda x: x @ x, X).program
    arithmetic = 2 * 8**3 / TARGET.flops_per_second[32]
    traffic = 1000 / TARGET.bytes_per_second
    assert costs.seconds(program.eqns, 0, 0, TARGET) == pytest.approx(arithmetic)
    assert costs.seconds(program.eqns, 600, 400, TARGET) == pytest.approx(traffic)
