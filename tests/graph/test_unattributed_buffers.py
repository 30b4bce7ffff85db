"""Buffers without a name, and the equations that they are made for."""

import jax
import pytest
from scanned_steps import behind_a_line
from steps import NEEDS_CUDA, pooled_arguments, pooled_step, traced

from coop_jax import backends
from coop_jax.compile.as_written import unplanned_bytes
from coop_jax.graph import stored_values
from coop_jax.graph.attribution import equation_of
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.unattributed_buffers import readers_of_unnamed
from coop_jax.plan.planner import PlanOptions, expected_bytes, unconstrained
from coop_jax.targets import named
from coop_jax.xla import absent_devices
from coop_jax.xla.buffer_assignment import StoredModule
from coop_jax.xla.buffers_from_schedule import StoredBuffer
from coop_jax.xla.hlo_module import Instruction
from coop_jax.xla.memory_figures import memory_figures

ENTRY = 1


def module(*instructions):
    """(opcode, equation or None, operands[, tuple index]), numbered from 0."""
    made = {
        number: Instruction(
            name=f"{opcode}.{number}",
            opcode=opcode,
            op_name="" if equation is None else f"jit(step)/eqn{equation}/{opcode}",
            computation=ENTRY,
            operands=tuple(operands),
            called=(),
            tuple_index=sum(index),
        )
        for number, (opcode, equation, operands, *index) in enumerate(instructions)
    }
    return StoredModule(made, {}, ENTRY, tuple(made), ())


def unnamed(found, *buffers):
    """Buffers are (instruction, shape index, bytes)."""
    return readers_of_unnamed(
        found,
        [StoredBuffer(number, index, size, 0, "temp") for number, index, size in buffers],
        equation_of,
    )


def test_the_reader_behind_what_only_forwards():
    found = module(
        ("parameter", None, ()),
        ("fusion", None, (0,)),  # two results
        ("get-tuple-element", None, (1,), 0),
        ("get-tuple-element", None, (1,), 1),
        ("bitcast", None, (3,)),
        ("multiply", 7, (2,)),
        ("add", 9, (4,)),
    )
    result = unnamed(found, (1, (0,), 64), (1, (1,), 32))
    assert result.reader == (7, 9)
    assert result.scratch_bytes == {7: 64, 9: 32}


def test_unnamed_readers_pass_it_on():
    """Buffers that are alive at once count together, later ones do not."""
    found = module(
        ("parameter", None, ()),
        ("transpose", None, (0,)),
        ("copy", None, (1,)),
        ("copy", None, (2,)),
        ("dot", 3, (3,)),
    )
    result = unnamed(found, (1, (), 10), (2, (), 20), (3, (), 40))
    assert result.reader == (3, 3, 3)
    assert result.scratch_bytes == {3: 20 + 40}


def test_what_nothing_reads_goes_with_what_is_made_along_with_it():
    found = module(
        ("fusion", None, ()),
        ("get-tuple-element", None, (0,), 1),
        ("dot", 3, (1,)),
    )
    result = unnamed(found, (0, (0,), 10), (0, (1,), 20))
    assert result.reader == (3, 3)
    assert result.scratch_bytes == {3: 30}


def test_what_no_equation_reads_has_no_reader():
    found = module(("fusion", None, ()), ("copy", None, (0,)))
    result = unnamed(found, (0, (), 10))
    assert result.reader == (-1,)
    assert result.scratch_bytes == {}


def test_on_a_cpu_the_indices_of_a_pooling_are_there_from_the_beginning():
    """Four of them, and the zeros that its gradient is added to, where XLA makes it."""
    arguments = jax.tree.map(lambda a: a.astype("bfloat16"), pooled_arguments())
    step = traced(pooled_step, *arguments, donate_argnums=0)
    compiled = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, compiled)
    gradients = [
        eqn.outvars[0].aval
        for eqn in step.program.eqns
        if eqn.primitive.name == "select_and_scatter_add"
    ]
    assert len(gradients) == 2
    # XLA of JAX 0.10 adds up in float32.
    size = sum(aval.size for aval in gradients)
    assert found.kept_constant_bytes in ((4 * 4 + 2) * size, (4 * 4 + 4) * size)
    figures = memory_figures(compiled)
    assert (
        unplanned_bytes(compiled, found) == figures.fixed_bytes + found.kept_constant_bytes
    )


@NEEDS_CUDA
def test_the_indices_of_a_pooling_on_a_gpu():
    """Without them the step is predicted to need much less than it does."""
    shapes = jax.eval_shape(lambda: pooled_arguments(batch=32, image=128, channels=64))
    target = "h200"
    placed = absent_devices.placed(shapes, absent_devices.named_device(target))
    step = traced(pooled_step, *placed, donate_argnums=0)
    compiled = step.compile(stored_values.tag(step.program))
    found = backends.stored_values(step.program, compiled)
    [first, *_] = (
        i
        for i, eqn in enumerate(step.program.eqns)
        if eqn.primitive.name == "select_and_scatter_add"
    )
    pooled = step.program.eqns[first].invars[0].aval
    assert found.workspace_bytes[first] >= 4 * pooled.size * 4
    assert found.early_bytes[first] >= 4 * pooled.size * 4
    graph = build_graph(step.program, found.without_early(), named(target))
    options = PlanOptions(policy="search", limits_live_bytes=True)
    predicted = expected_bytes(graph, unconstrained(graph, options), options)
    predicted += unplanned_bytes(compiled, found) + sum(found.early_bytes.values())
    assert predicted == pytest.approx(memory_figures(compiled).total_bytes, rel=0.05)


def test_on_a_cpu_what_a_loop_writes_into_is_no_constant_beside_its_results():
    """The stacks of a scan are zeros first, which XLA makes at the beginning."""
    step, args = behind_a_line()
    asked = traced(step, *args, donate_argnums=0)
    compiled = asked.compile(stored_values.tag(asked.program))
    found = backends.stored_values(asked.program, compiled)
    assert found.kept_constant_bytes == 0
