"""Large programs: deep recomputation, and time."""

import time

import pytest
from core.programs import Op, Program, chain

from coop_jax import _ext


def test_a_way_back_of_100_000_operations():
    length = 100_000
    # Room for two tensors. The last operation reads the end of the chain, which was
    # evicted for a tensor twice its size.
    ops = [Op([k - 1] if k else [], [k]) for k in range(length)]
    ops += [
        Op([], [length]),
        Op([length], [length + 1]),
        Op([length - 1], [length + 2]),
    ]
    program = Program(ops, [64] * length + [128, 0, 0])
    schedule = _ext.plan(program.graph(), 128, _ext.PlanOptions())
    assert schedule.statistics.recomputations == length
    assert _ext.validate(program.graph(), schedule) == []


@pytest.mark.parametrize(
    ("num_ops", "limit_seconds"),
    [(10_000, 2), pytest.param(100_000, 30, marks=pytest.mark.slow)],
)
def test_planning_time_at_half_the_peak(num_ops, limit_seconds):
    graph, options = chain(num_ops // 2).graph(), _ext.PlanOptions()
    peak = _ext.unconstrained(graph, options).statistics.peak_bytes
    start = time.process_time()
    schedule = _ext.plan(graph, peak // 2, options)
    assert time.process_time() - start < limit_seconds
    assert schedule.statistics.forced_evictions > num_ops // 8
    assert _ext.validate(graph, schedule) == []


@pytest.mark.parametrize(("num_ops", "limit_seconds"), [(5_000, 10), (50_000, 60)])
def test_searching_time_at_half_the_peak(num_ops, limit_seconds):
    graph = chain(num_ops // 2).graph()
    peak = _ext.unconstrained(graph, _ext.PlanOptions()).statistics.peak_bytes
    start = time.process_time()
    schedule = _ext.plan(graph, peak // 2, _ext.PlanOptions(policy="search"))
    assert time.process_time() - start < limit_seconds
    assert schedule.statistics.compute_overhead < 1.3
    assert _ext.validate(graph, schedule) == []
