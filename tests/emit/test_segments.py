"""Where fences stand and what passes through them."""

from steps import TARGET, mlp_arguments, mlp_step, traced

from coop_jax import _ext
from coop_jax.emit.segments import cut
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.plan.decoded import EVICT, FREE, RECOMPUTE
from coop_jax.plan.planner import PlanOptions


def planned(donate: bool):
    options = {"donate_argnums": 0} if donate else {}
    step = traced(mlp_step, *mlp_arguments(), **options)
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    return graph, _ext.minimum_pool(graph.core, PlanOptions()).schedule


def test_every_run_of_recomputations_starts_a_segment():
    graph, schedule = planned(donate=True)
    segments = cut(graph, schedule, fence_free_inputs=False)
    assert len(segments) > 1
    for segment in segments:
        was_recompute = True
        for execution in segment.executions:
            assert was_recompute or not execution.is_recompute
            was_recompute = execution.is_recompute


def test_freeing_late_within_a_segment_hardly_exceeds_the_plan():
    graph, schedule = planned(donate=True)
    limit = schedule.statistics.max_live_bytes
    starts, executed = set(), 0
    for segment in cut(graph, schedule, fence_free_inputs=True):
        starts.add(executed)
        executed += len(segment.executions)
    made = {}
    for step, tensor, _, _ in schedule.placements.tolist():
        made.setdefault(step, []).append(tensor)
    live, held, number, recomputed = {}, 0, 0, False
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind in (EVICT, FREE):
            held += live.pop(index, 0)
            continue
        recomputed |= kind == RECOMPUTE
        if number in starts:
            held = 0
        live.update((t, graph.in_pool_bytes[t]) for t in made.get(step, ()))
        assert not recomputed or sum(live.values()) + held <= limit * (1 + 1 / 16)
        number += 1
    assert number == executed


def test_a_segment_reads_only_what_was_fenced_or_made_in_it():
    graph, schedule = planned(donate=True)
    for number, segment in enumerate(cut(graph, schedule, fence_free_inputs=True)):
        known = set(segment.fenced)
        for execution in segment.executions:
            if number:
                assert known.issuperset(graph.operations[execution.operation].inputs)
            known.update(execution.makes)


def test_the_last_segment_is_finished_before_the_next_starts():
    graph, schedule = planned(donate=True)
    segments = cut(graph, schedule, fence_free_inputs=True)
    outputs = {graph.index_of[v] for v in graph.program.outvars}
    for number, segment in enumerate(segments[:-1]):
        read, made = set(), set()
        for execution in segment.executions:
            read.update(graph.operations[execution.operation].inputs)
            made.update(execution.makes)
        rest = [e for later in segments[number + 1 :] for e in later.executions]
        for tensor in made - read:
            # Is this version of it read, or is it an output, before it's made again?
            reader = next(
                (
                    e
                    for e in rest
                    if tensor in e.makes or tensor in graph.operations[e.operation].inputs
                ),
                None,
            )
            is_needed = (
                tensor in outputs
                if reader is None
                else tensor in graph.operations[reader.operation].inputs
            )
            assert is_needed == (tensor in segments[number + 1].fenced)


def test_inputs_that_are_not_donated_stay_out_on_cpu():
    graph, schedule = planned(donate=False)
    inputs = range(graph.num_inputs)
    recomputed_from_inputs_only = {
        execution.operation
        for segment in cut(graph, schedule, fence_free_inputs=False)
        for execution in segment.executions
        if execution.is_recompute
        and set(graph.operations[execution.operation].inputs) <= set(inputs)
    }
    for segment in cut(graph, schedule, fence_free_inputs=False)[1:]:
        passed = [t for t in segment.fenced if t in inputs]
        needed = {
            execution.operation
            for execution in segment.executions
            if execution.is_recompute
        } & recomputed_from_inputs_only
        assert len(passed) <= len(needed)
        assert bool(passed) == bool(needed)
