"""The oracles against each other, and on graphs whose optimum is plain."""

import numpy as np
import pytest
from core.programs import COMPUTE, RECOMPUTE, Op, Program, chain, programs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import exhaustive
from oracles.gap import optimality_gap
from oracles.live_bytes import Arrays, live_bytes
from oracles.rematerialization_ilp import least_recomputation

from coop_jax import _ext


def budgets(graph, shares):
    """Between the lower bound and what no eviction needs."""
    bound, _ = _ext.lower_bound(graph)
    peak = _ext.unconstrained(graph, _ext.PlanOptions()).statistics.max_live_bytes
    found = {int(bound + (peak - bound) * share) // 64 * 64 for share in shares}
    return sorted(budget for budget in found if budget > 0)


def seconds_of(optimum):
    return None if optimum is None else optimum.seconds


def tight_program(seed: int) -> Program:
    """Up to eight operations that mostly have to recompute."""
    random = np.random.default_rng(seed)
    program = Program([], [int(random.choice([0, 64, 128]))])
    if random.random() < 0.7:
        program.external.add(0)
    for i in range(random.integers(4, 9)):
        count = len(program.tensor_bytes)
        inputs = set(random.integers(0, count, random.integers(1, 3)).tolist())
        if random.random() < 0.6:
            inputs.add(count - 1)
        op = Op(
            sorted(inputs),
            [],
            seconds=float(random.integers(1, 12)),
            workspace_bytes=int(random.choice([0, 0, 0, 64, 128])),
            recomputable=bool(random.random() < 0.93),
        )
        program.ops.append(op)
        for _ in range(1 if random.random() < 0.8 else 2):
            t = len(program.tensor_bytes)
            program.tensor_bytes.append(int(random.choice([64, 64, 128, 256])))
            op.outputs.append(t)
            where = random.random()
            if where < 0.08:
                program.external.add(t)
                continue
            if where < 0.16:
                program.pinned.add(t)
            for source in sorted(inputs - program.external - program.pinned):
                same = program.tensor_bytes[source] == program.tensor_bytes[t]
                if same and random.random() < 0.4:
                    program.in_place.append((i, source, t))
    made = range(1, len(program.tensor_bytes))
    program.output = {t for t in made if random.random() < 0.12} - program.external
    return program


@pytest.mark.parametrize("seed", range(40))
def test_ilp_equals_exhaustive_search(seed):
    graph = tight_program(seed).graph()
    arrays = graph.arrays()
    for budget in budgets(graph, (0, 0.25, 0.5)):
        expected = exhaustive.least_recomputation(arrays, budget)
        found = least_recomputation(arrays, budget, passes=3)
        assert seconds_of(found) == expected
        one_pass = least_recomputation(arrays, budget)
        if one_pass is not None:
            assert one_pass.is_proven
            assert one_pass.seconds >= expected
            assert one_pass.live_bytes <= budget


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(max_ops=6), share=st.sampled_from([0.0, 0.0, 0.3, 0.6]))
def test_ilp_equals_exhaustive_search_with_mutation(program, share):
    graph = program.graph()
    arrays = graph.arrays()
    if graph.num_tensors > 12:
        return
    for budget in budgets(graph, (share,)):
        found = least_recomputation(arrays, budget, passes=2)
        assert seconds_of(found) == exhaustive.least_recomputation(arrays, budget)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), policy=st.sampled_from(["coop", "lookahead"]))
def test_replay_needs_no_more_than_a_schedule_uses(program, policy):
    graph = program.graph()
    options = _ext.PlanOptions(policy=policy, overhead_limit=50)
    schedule = _ext.minimum_pool(graph, options).schedule
    runs = [i for kind, i in schedule.steps.tolist() if kind in (COMPUTE, RECOMPUTE)]
    used = live_bytes(Arrays.of(graph.arrays(), 64), runs)
    assert used <= schedule.statistics.max_live_bytes


def test_a_chain_at_its_least():
    # Four activations of 1 KiB and the first gradient; tensor 1 comes back from 0.
    arrays = chain(4).graph().arrays()
    assert least_recomputation(arrays, 5 * 1024).seconds == 0
    optimum = least_recomputation(arrays, 4 * 1024)
    assert optimum.seconds == exhaustive.least_recomputation(arrays, 4 * 1024) == 1
    assert optimum.live_bytes == 4 * 1024
    assert len(optimum.runs) == 9
    assert least_recomputation(arrays, 2 * 1024) is None


def in_place_program() -> Program:
    """Tensor 1 may take over the block of 0, which is read again at the end."""
    program = Program(
        [Op([], [0], seconds=5), Op([0], [1]), Op([1], [2]), Op([0], [3])],
        [64, 64, 0, 0],
    )
    program.in_place = [(1, 0, 1)]
    return program


def test_an_output_takes_over_a_block_that_has_to_come_back():
    program = in_place_program()
    assert least_recomputation(program.graph().arrays(), 128).seconds == 0
    optimum = least_recomputation(program.graph().arrays(), 64)
    assert (optimum.seconds, optimum.live_bytes) == (5, 64)
    assert optimum.runs == ((0, 0), (1, 1), (2, 2), (0, 3), (3, 3))
    program.in_place = []
    assert least_recomputation(program.graph().arrays(), 64) is None


def test_workspace_counts_while_its_operation_runs():
    program = Program(
        [Op([], [0], seconds=7), Op([], [], workspace_bytes=64), Op([0], [1])], [64, 0]
    )
    arrays = program.graph().arrays()
    assert least_recomputation(arrays, 128).seconds == 0
    assert least_recomputation(arrays, 64).seconds == 7
    program.ops[0].recomputable = False
    assert least_recomputation(program.graph().arrays(), 64) is None


def test_of_several_outputs_some_may_stay():
    # Both come back together, but only 0 had to go.
    program = Program(
        [Op([], [0, 1], seconds=3), Op([], [2]), Op([2, 1], [3]), Op([0, 1], [4])],
        [128, 64, 128, 0, 0],
    )
    optimum = least_recomputation(program.graph().arrays(), 192)
    assert (optimum.seconds, optimum.live_bytes) == (3, 192)
    assert least_recomputation(program.graph().arrays(), 128) is None


def test_nothing_needs_the_old_value_after_an_overwrite():
    # Beside pinned 0 there is room for 2 or 4. The way back to 2 leads through 0, which
    # operation 2 overwrites: 2 has to be there by then, so 4 is made twice as well.
    program = Program(
        [Op([0], [2]), Op([], [4], seconds=9), Op([0], [1]), Op([2], [3]), Op([4], [5])],
        [64, 64, 64, 0, 64, 0],
        pinned={0, 1},
        overwrites=[(2, 0, 1)],
    )
    assert least_recomputation(program.graph().arrays(), 192).seconds == 0
    optimum = least_recomputation(program.graph().arrays(), 128)
    assert optimum.seconds == 9 + 1
    assert optimum.runs == ((0, 0), (1, 1), (0, 2), (2, 2), (3, 3), (1, 4), (4, 4))


def two_ways_back() -> Program:
    """For the last operation 2 and 3 come back, best one after the other."""
    return Program(
        [
            Op([], [0]),
            Op([], [1]),
            Op([0], [2]),
            Op([1], [3]),
            Op([], [4]),
            Op([4], [5]),
            Op([2, 3, 5], [6]),
        ],
        [256, 256, 64, 64, 512, 64, 0],
    )


def test_passes_lift_the_order_within_a_stage():
    arrays = two_ways_back().graph().arrays()
    assert least_recomputation(arrays, 576) is None
    assert least_recomputation(arrays, 576, passes=2).seconds == 4
    assert exhaustive.least_recomputation(arrays, 576) == 4


def test_gap():
    graph = in_place_program().graph()
    gap = optimality_gap(graph, 64, 13.0)
    assert gap.at_least == gap.at_most == pytest.approx((13 - 5) / 8)
    assert optimality_gap(graph, 64, 5.0).at_most == pytest.approx(0)
    # Better than any single pass.
    assert optimality_gap(two_ways_back().graph(), 576, 4.0).optimum is None


def test_without_time_there_is_still_a_bound():
    graph = chain(9, seconds=[float(1 + k % 5) for k in range(18)]).graph()
    optimum = least_recomputation(graph.arrays(), 5 * 1024, time_limit=0.0)
    exact = least_recomputation(graph.arrays(), 5 * 1024)
    assert exact.is_proven
    assert 0 <= optimum.bound <= exact.seconds <= optimum.seconds


def test_replay_refuses():
    program = in_place_program()
    arrays = Arrays.of(program.graph().arrays(), 64)
    with pytest.raises(AssertionError):
        live_bytes(arrays, [1, 0, 2, 3])
    with pytest.raises(AssertionError):
        live_bytes(arrays, [0, 1, 2])
    program.ops[0].recomputable = False
    with pytest.raises(AssertionError, match="operation 0 runs again"):
        live_bytes(Arrays.of(program.graph().arrays(), 64), [0, 1, 2, 0, 3])
