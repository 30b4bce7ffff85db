"""Updates that wait for what reads the old value."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import optax
import pytest
from models import transformer_problem
from steps import NEEDS_CUDA, TARGET, assert_trees_equal, mlp_arguments, traced

from coop_jax import backends
from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.emit.order_after import after_p
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules, tag
from coop_jax.graph.take_overs import SMALL_OVERWRITE_BYTES
from coop_jax.plan.planner import (
    PlanOptions,
    plan_pool,
    planner_options,
    smallest_pool,
    unconstrained,
)
from coop_jax.targets import named
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures


def early_update_step(weights, x):
    """Every weight is updated before the gradient that reads it goes on."""
    activations, hidden = [], x
    for w in weights:
        activations.append(hidden)
        hidden = jnp.tanh(hidden @ w)
    gradient = hidden / hidden.size
    new = []
    for w, before in zip(weights[::-1], activations[::-1], strict=True):
        further = gradient @ w.T
        new.append(w - 0.1 * (before.T @ gradient))
        gradient = further
    return new[::-1], gradient.sum()


def rewritten(step):
    """As written, in one segment."""
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    segments = cut(graph, unconstrained(graph, PlanOptions()), fence_free_inputs=True)
    assert len(segments) == 1
    return graph, rewrite(graph, segments)


def early_update():
    arguments = mlp_arguments(layers=4, batch=64, width=256)
    return traced(early_update_step, *arguments, donate_argnums=0), arguments


def small_transformer():
    problem = transformer_problem(
        num_layers=2, width=64, num_heads=4, batch_size=4, sequence_length=32
    )
    arguments = problem.state, problem.batch, problem.key
    return traced(problem.train_step, *arguments, donate_argnums=0), arguments


def ancestors(program):
    """Of every equation: the numbers of those that its operands come from."""
    made_by, found = {}, []
    for number, eqn in enumerate(program.eqns):
        read = [v for v in eqn.invars if not isinstance(v, Literal)]
        before = {made_by[v] for v in read if v in made_by}
        found.append(before.union(*(found[k] for k in before)))
        made_by.update(dict.fromkeys(eqn.outvars, number))
    return found, made_by


def without_waits(program):
    """The same program, and nothing waits."""
    same, eqns = {}, []
    for eqn in program.eqns:
        invars = [v if isinstance(v, Literal) else same.get(v, v) for v in eqn.invars]
        if eqn.primitive is after_p:
            same[eqn.outvars[0]] = invars[0]
        else:
            eqns.append(eqn.replace(invars=invars))
    assert same
    return dataclasses.replace(program, eqns=tuple(eqns))


@pytest.mark.parametrize("make", [early_update, small_transformer])
def test_every_reader_comes_before_the_update(make):
    step, _ = make()
    graph, program = rewritten(step)
    before, made_by = ancestors(program)
    outputs = dict(zip(step.program.outvars, program.outvars, strict=True))
    assert graph.overwritten_by
    for operation, olds in graph.overwritten_by.items():
        new = {outputs.get(graph.tensors[t]) for t in graph.operations[operation].outputs}
        [update] = {made_by[v] for v in new if v in made_by}
        for old in olds:
            var = graph.tensors[old]
            readers = {
                k for k, eqn in enumerate(program.eqns) if any(v is var for v in eqn.invars)
            }
            assert readers <= {update} | before[update]


@pytest.mark.parametrize("make", [early_update, small_transformer])
def test_nothing_is_waited_for_that_something_else_waits_for(make):
    """As an operand it would be in memory until then."""
    step, _ = make()
    _, program = rewritten(step)
    before, made_by = ancestors(program)
    waits = [eqn for eqn in program.eqns if eqn.primitive is after_p]
    assert waits
    for eqn in waits:
        others = [made_by[v] for v in eqn.invars[1:]]
        assert not any(a in before[b] for a in others for b in others)


def test_one_for_every_update_that_another_reader_precedes():
    step, _ = early_update()
    graph, program = rewritten(step)
    waits = [eqn for eqn in program.eqns if eqn.primitive is after_p]
    assert {eqn.invars[0] for eqn in waits} <= set(step.program.invars[:4])
    assert len(graph.overwritten_by) == 4
    assert len(waits) == 4


def test_the_values_are_the_same():
    step, arguments = early_update()
    _, program = rewritten(step)
    run = jax.jit(_compat.jaxpr_as_fun(program.to_jaxpr()))
    *weights, value = run(*jax.tree.leaves(arguments))
    assert_trees_equal((weights, value), jax.jit(early_update_step)(*arguments))


def copied_weights(compiled):
    """Bytes of every copy of an argument, small ones left out."""
    [module] = compiled.runtime_executable().hlo_modules()
    copies = re.findall(r"= f32\[([\d,]+)\]\S* copy\(%state", module.to_string())
    sizes = [4 * math.prod(map(int, dimensions.split(","))) for dimensions in copies]
    return [size for size in sizes if size >= SMALL_OVERWRITE_BYTES]


@pytest.mark.slow
def test_on_a_cpu_no_weight_is_copied():
    """XLA would copy at the first operation what it can't see to be read in time."""
    step, _ = small_transformer()
    _, program = rewritten(step)
    compiled = [step.compile(p) for p in (without_waits(program), program)]
    assert copied_weights(compiled[0])
    assert not copied_weights(compiled[1])
    before, now = (memory_figures(c).temp_bytes for c in compiled)
    assert now < before


def test_it_can_be_batched_and_differentiated():
    def double(value, other):
        return 2 * after_p.bind(value, other)

    values, others = jnp.arange(3.0), jnp.ones((3, 2))
    assert_trees_equal(jax.vmap(double)(values, others), 2 * values)
    assert_trees_equal(jax.vmap(double, (0, None))(values, others), 2 * values)
    assert jax.grad(lambda x: double(x, others).sum())(3.0) == 2


@NEEDS_CUDA
@pytest.mark.slow
def test_on_a_gpu_fewer_weights_are_in_memory_twice():
    """XLA would run updates first, and then copies the new weights over the old."""
    problem = transformer_problem(
        num_layers=6,
        width=512,
        num_heads=8,
        batch_size=2,
        sequence_length=512,
        optimizer=optax.sgd(0.1),
    )
    arguments = absent_devices.placed(
        (problem.state, problem.batch, problem.key), absent_devices.named_device("h200")
    )
    step = traced(problem.train_step, *arguments, donate_argnums=0)
    compiled = step.compile(tag(step.program))
    materialization = backends.stored_values(step.program, compiled)
    graph = build_graph(step.program, materialization, named("h200"), early=True)
    options = planner_options("search", 256)
    pool_bytes = smallest_pool(graph, options).pool_bytes
    segments = cut(graph, plan_pool(graph, pool_bytes, options), fence_free_inputs=True)

    program = rewrite(graph, segments)

    def measured(program):
        compiled = step.compile(program)
        return memory_figures(compiled).total_bytes, compiled.as_text().count(" copy(")

    any_order, copies_then = measured(without_waits(program))
    in_order, copies_now = measured(program)
    assert copies_now < copies_then
    assert in_order < any_order
