"""Bytes that a compiled plan keeps alive beyond the plan, read off XLA's schedule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from steps import NEEDS_CUDA, QUICK, TARGET, traced, xla_placement

from coop_jax import backends
from coop_jax.compile.as_written import unplanned_bytes
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.plan.planner import expected_bytes, key_of, planner_options, smallest_pool
from coop_jax.search.candidates import MAX_CLOSING_IN, MAX_COMPILATIONS
from coop_jax.search.driver import BudgetSearch
from coop_jax.search.live_bytes_feedback import executions_by_instruction, scratch_needed
from coop_jax.search.problem import Problem
from coop_jax.trace.costs import aval_bytes
from coop_jax.xla import absent_devices, liveness
from coop_jax.xla.buffer_assignment import (
    assigned_buffers,
    published_module,
    temporary_addresses,
)
from coop_jax.xla.buffers_from_schedule import Flow
from coop_jax.xla.memory_figures import memory_figures

OPTIONS = planner_options(QUICK, TARGET.alignment_bytes)


def gelu_step(weights, x):
    """Of the exact GELU and its gradient side by side XLA:CPU stores what it does not
    store of the forward pass alone."""

    def loss(weights):
        hidden = x
        for up, down in weights:
            hidden = hidden + jax.nn.gelu(hidden @ up, approximate=False) @ down
        return jnp.mean(hidden**2)

    grads = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def gelu_arguments(layers=4, batch=512, width=64):
    keys = iter(jax.random.split(jax.random.key(0), 2 * layers + 1))
    shapes = [(width, 4 * width), (4 * width, width)] * layers
    flat = [0.1 * jax.random.normal(next(keys), shape) for shape in shapes]
    weights = [tuple(flat[i : i + 2]) for i in range(0, len(flat), 2)]
    return weights, jax.random.normal(next(keys), (batch, width))


class Read:
    """A step, what XLA stores of it, and its tightest plan as compiled."""

    def __init__(self, *arguments):
        self.step = traced(gelu_step, *arguments, donate_argnums=0)
        self.tagged = self.step.compile(stored_values.tag(self.step.program))
        self.stored = backends.stored_values(self.step.program, self.tagged)
        self.fixed_bytes = unplanned_bytes(self.tagged, self.stored)
        self.graph = self.graph_with({})
        self.placement = xla_placement(self.step.program, "cpu")
        self.schedule = smallest_pool(self.graph, OPTIONS).schedule
        self.compiled = self.compile(self.graph, self.schedule)

    def graph_with(self, scratch):
        return build_graph(self.step.program, self.stored.with_scratch(scratch), TARGET)

    def compile(self, graph, schedule):
        return self.step.compile(self.placement.realize(graph, schedule).program)


@pytest.fixture(scope="module")
def read():
    return Read(*gelu_arguments())


def test_fusions_beside_a_gradient_are_learnt(read):
    """Of the plan as read first XLA needs clearly more than was expected."""

    def expected(graph, schedule):
        return read.fixed_bytes + expected_bytes(graph, schedule, OPTIONS)

    needed = memory_figures(read.compiled).total_bytes
    assert expected(read.graph, read.schedule) < 0.85 * needed
    scratch = scratch_needed(read.graph, read.schedule, read.compiled)
    # The next plan may recompute elsewhere, beside other gradients: so JAX 0.10 does here.
    for _ in range(2):
        learnt = read.graph_with(scratch)
        schedule = smallest_pool(learnt, OPTIONS).schedule
        compiled = read.compile(learnt, schedule)
        error = expected(learnt, schedule) / memory_figures(compiled).total_bytes - 1
        for index, size in scratch_needed(learnt, schedule, compiled).items():
            scratch[index] = max(scratch.get(index, 0), size)
    assert abs(error) < 0.05


def test_scratch_says_what_is_alive_where_it_was_learnt(read):
    """Planned with it, the same executions have at least as much alive as XLA has."""
    scratch = scratch_needed(read.graph, read.schedule, read.compiled)
    learnt = read.graph_with(scratch)
    planned = lifetimes(learnt, read.schedule).live_bytes(learnt.in_pool_bytes)
    module = published_module(read.compiled)
    actual = liveness.live_bytes(module, temporary_addresses(read.compiled, module))
    for at, execution in enumerate(executions_by_instruction(module)):
        if execution is not None:
            assert actual[at] <= planned[execution]
    # And nothing is learnt of what was right.
    assert scratch_needed(learnt, read.schedule, read.compiled) == {}


def test_live_bytes_are_those_of_the_addresses_in_use(read):
    """The oracle marks every byte of every buffer, as XLA assigned them."""
    module = published_module(read.compiled)
    flow = Flow(module, module.entry)
    when = {number: at for at, number in enumerate(flow.sequence)}
    places = {
        (b.instruction, b.shape_index): (b.offset, b.size_bytes)
        for b in assigned_buffers(read.compiled, module)
        if b.kind == "temp"
    }
    temp_bytes = memory_figures(read.compiled).temp_bytes
    in_use = np.zeros((len(flow.sequence), temp_bytes), bool)
    for value in flow.values:
        offset, size = places.get((value.instruction, value.index), (0, 0))
        until = flow.last_read[id(value)] + 1
        in_use[when[value.instruction] : until, offset : offset + size] = True
    actual = liveness.live_bytes(module, temporary_addresses(read.compiled, module))
    np.testing.assert_array_equal(actual, in_use.sum(axis=1))
    # Where no addresses are known, what shares its place counts twice.
    assert (liveness.live_bytes(module) >= actual).all()


def test_every_part_of_a_compiled_plan_has_its_execution(read):
    module = published_module(read.compiled)
    executions = executions_by_instruction(module)
    assert len(executions) == len(module.sequences[module.entry])
    known = [e for e in executions if e is not None]
    count = len(lifetimes(read.graph, read.schedule).operation)
    assert set(known) <= set(range(count))
    assert len(set(known)) > count // 2  # The others are merged into their readers.
    assert executions[0] is not None  # A copy of an argument: made for what follows.


def searches(read, with_scratch, believed_less=0, options=OPTIONS):
    lines = []
    problem = Problem(
        [read.graph],
        options,
        read.fixed_bytes - believed_less,
        read.placement,
        read.step.compile,
        lines.append,
        with_scratch,
    )
    return BudgetSearch(problem), lines


@pytest.mark.slow
def test_a_search_learns(read):
    whole = planner_options("search", TARGET.alignment_bytes)
    search, lines = searches(
        read, lambda scratch: [read.graph_with(scratch)], options=whole
    )
    found = search._search().tightest(0, num_left=3)
    assert search.num_compilations == len(lines)
    measured = list(search.problem.measured)
    # Plans, and some of them once more with order fences.
    num_plans = sum(not m.candidate.ordered_before for m in measured)
    assert 1 < num_plans <= 3
    assert len(measured) <= 2 * num_plans
    assert found is min(measured, key=lambda m: m.total_bytes)
    errors = [abs(m.candidate.predicted_bytes / m.total_bytes - 1) for m in measured]
    assert errors[-1] < 0.05 < 0.15 < errors[0]


@pytest.mark.parametrize("percent", [80, 70, 65])
def test_a_budget_is_kept_with_few_compilations(read, percent):
    unmodified = memory_figures(read.step.compile(read.step.program)).total_bytes
    budget = unmodified * percent // 100
    search, lines = searches(read, lambda scratch: [read.graph_with(scratch)])
    assert search.run(budget).total_bytes <= budget
    assert 1 <= search.num_compilations == len(lines)
    assert search.num_compilations <= MAX_COMPILATIONS + MAX_CLOSING_IN


def test_what_was_learnt_is_forgotten_where_no_plan_fits_with_it(read):
    """Scratch as large as the step leaves nothing to plan with."""
    unmodified = memory_figures(read.step.compile(read.step.program)).total_bytes
    asked = []

    def with_scratch(scratch):
        asked.append(scratch)
        return [read.graph_with(dict.fromkeys(scratch, 2 * unmodified))]

    search, lines = searches(read, with_scratch, believed_less=unmodified // 20)
    budget = unmodified * 65 // 100
    assert search.run(budget).total_bytes <= budget
    assert asked
    assert len(lines) > 1


def test_nothing_is_learnt_where_xla_publishes_no_module(read):
    class Unpublished:
        def runtime_executable(self):
            return object()

    assert scratch_needed(read.graph, read.schedule, Unpublished()) == {}


def test_plans_of_two_orders_are_two_plans(read):
    early = build_graph(read.step.program, read.stored, TARGET, early=True)
    schedule = read.schedule
    assert key_of(read.graph, schedule) == key_of(read.graph, schedule)
    assert key_of(read.graph, schedule) != key_of(early, schedule)


@NEEDS_CUDA
def test_a_gpu_that_is_not_there_publishes_a_schedule():
    shapes = jax.eval_shape(lambda: gelu_arguments(batch=8192, width=256))
    step = traced(
        gelu_step, *absent_devices.placed(shapes, absent_devices.named_device("h200"))
    )
    tagged = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, tagged)
    graph = build_graph(step.program, stored, TARGET)
    schedule = smallest_pool(graph, OPTIONS).schedule
    program = xla_placement(step.program, "cuda").realize(graph, schedule).program
    compiled = step.compile(program)
    module = published_module(compiled)
    assert not assigned_buffers(compiled, module)
    known = {e for e in executions_by_instruction(module) if e is not None}
    assert len(known) > len(schedule.steps) // 8
    live = int(liveness.live_bytes(module).max())
    assert live == pytest.approx(memory_figures(compiled).temp_bytes, rel=0.2)
    needed = scratch_needed(graph, schedule, compiled)
    assert set(needed) <= {operation.anchor for operation in graph.operations}


@pytest.mark.slow
def test_executables_from_a_cache_teach_the_same(read, compilation_cache):
    """Or else a second process would plan otherwise, and compile everything again."""

    def smallest():
        search, lines = searches(read, lambda scratch: [read.graph_with(scratch)])
        found = search.smallest()
        compiled = {path.name for path in compilation_cache.glob("*-cache")}
        return key_of(found.candidate.graph, found.candidate.schedule), lines, compiled

    first = smallest()
    assert len(first[2]) == len(first[1]) > 1
    assert smallest() == first


def test_copies_of_arguments_are_seen(read):
    """XLA:CPU copies weights that the step as written updates in place; the plan's order
    of readers and updates leaves nothing to copy."""
    weights = sum(map(aval_bytes, jax.tree.leaves(read.step.args[0])))
    as_written = published_module(read.tagged)
    copied = liveness.copied_arguments_bytes(as_written)
    assert 0 < copied <= weights
    planned = published_module(read.compiled)
    assert liveness.copied_arguments_bytes(planned) < copied
