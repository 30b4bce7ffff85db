"""The online arena runs whole programs: planned schedules, and as they come."""

import numpy as np
from core.patterns import pattern
from core.programs import COMPUTE, EVICT, FREE, Op, Program
from hypothesis import assume, given
from hypothesis import strategies as st

from coop_jax import OnlineArena, _ext


@st.composite
def straight_programs(draw):
    """One output per operation; externals come first. Returns it with its externals."""
    num_externals, num_ops = draw(st.integers(1, 2)), draw(st.integers(1, 25))
    ops, sizes = [], [64] * num_externals
    for k in range(num_ops):
        inputs = draw(
            st.lists(
                st.integers(max(0, len(sizes) - 6), len(sizes) - 1), min_size=1, max_size=3
            )
        )
        seconds = draw(st.sampled_from([0.0, 1.0, 1.0, 5.0]))
        ops.append(Op(sorted(set(inputs)), [num_externals + k], seconds))
        sizes.append(draw(st.sampled_from([64, 100, 256, 1000])))
    externals = set(range(num_externals))
    return Program(ops, sizes, external=externals, output={len(sizes) - 1})


def values_of(program):
    """The contents of every tensor; an external is known to whoever needs it."""
    values = [pattern(t, program.tensor_bytes[t]) for t in sorted(program.external)]
    for op in program.ops:
        [made] = op.outputs
        inputs = [values[t] for t in op.inputs]
        values.append(pattern(made, program.tensor_bytes[made], inputs))
    return values


def recompute_of(program, values, op):
    """From the inputs in the arena, and the externals, which are not in it."""
    [made] = op.outputs

    def recompute(value, *inputs):
        inside = iter(inputs)
        read = [values[t] if t in program.external else next(inside) for t in op.inputs]
        value[:] = pattern(made, len(value), read)

    return recompute


@given(straight_programs(), st.integers(0, 3))
def test_replays_a_schedule_address_by_address(program, tightness):
    """With the planner's evictions the arena puts everything where the planner does."""
    graph = program.graph()
    options = _ext.PlanOptions(
        policy="coop", recomputable_in_place=False, density_threshold=0.01
    )
    smallest = _ext.minimum_pool(graph, options).capacity
    largest = _ext.unconstrained(graph, options).statistics.peak_bytes
    capacity = smallest + (largest - smallest) * tightness // 3
    schedule = _ext.plan(graph, capacity, options)
    # A greedy planner may fail with more where it does not with less.
    assume(isinstance(schedule, _ext.Schedule))
    arena = OnlineArena(schedule.capacity, cheap_density=0.01)
    values = values_of(program)
    handles: dict[int, int] = {}
    planned = {(s, t): o for s, t, o, _ in schedule.placements.tolist()}
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind == EVICT:
            arena.evict(handles[index])
        elif kind == FREE:
            # Recomputed for others after its last use, it is gone again already.
            if arena.is_resident(handles[index]):
                arena.evict(handles[index])
        else:
            op = program.ops[index]
            [made] = op.outputs
            if kind == COMPUTE:
                handles[made] = arena.allocate(
                    program.tensor_bytes[made],
                    seconds=op.seconds,
                    inputs=[handles[t] for t in op.inputs if t not in program.external],
                    recompute=recompute_of(program, values, op),
                )
                assert arena.offset(handles[made]) == planned[step, made]
                arena.touch(handles[made])[:] = values[made]
            np.testing.assert_array_equal(arena.touch(handles[made]), values[made])
            assert arena.offset(handles[made]) == planned[step, made]
    forced = schedule.statistics.recomputations
    assert arena.recomputations == forced
    assert arena.recomputed_seconds == schedule.statistics.recompute_seconds
    assert arena.peak_bytes == schedule.statistics.peak_bytes


@given(straight_programs())
def test_runs_a_program_it_does_not_know(program):
    """In the smallest pool the planner needs, and a little more for what it can't see."""
    graph = program.graph()
    options = _ext.PlanOptions(policy="coop", recomputable_in_place=False)
    smallest = _ext.minimum_pool(graph, options).capacity
    arena = OnlineArena(2 * smallest)
    values = values_of(program)
    last_use = graph.last_use
    handles: dict[int, int] = {}
    for k, op in enumerate(program.ops):
        inside = [handles[t] for t in op.inputs if t not in program.external]
        [made] = op.outputs
        handles[made] = arena.allocate(
            program.tensor_bytes[made],
            seconds=op.seconds,
            inputs=inside,
            recompute=recompute_of(program, values, op),
        )
        recompute_of(program, values, op)(
            arena.pin(handles[made]), *(values_in(arena, inside))
        )
        arena.unpin(handles[made])
        for t in [t for t in handles if last_use[t] == k]:
            arena.release(handles.pop(t))
    for t, handle in handles.items():
        np.testing.assert_array_equal(arena.touch(handle), values[t])
        arena.release(handle)
    assert arena.free_bytes == arena.capacity


def values_in(arena, tensors):
    return [arena.touch(tensor).copy() for tensor in tensors]
