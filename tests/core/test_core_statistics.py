"""Statistics against the raw schedule; what DTR promises about its overhead."""

import math

import numpy as np
import pytest
from core.programs import (
    COMPUTE,
    EVICT,
    FREE,
    RECOMPUTE,
    chain,
    peak_without_eviction,
    programs,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paper.replay import replay

from coop_jax import _ext


@pytest.mark.parametrize("policy", ["coop", "dtr", "dte", "lookahead"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), tightness=st.sampled_from([0.0, 0.2]))
def test_statistics_follow_from_the_schedule(policy, program, tightness):
    graph = program.graph()
    options = _ext.PlanOptions(policy=policy, overhead_limit=50)
    schedule = _ext.minimum_pool(graph, options).schedule
    statistics = schedule.statistics
    kinds, indices = schedule.steps[:, 0], schedule.steps[:, 1]
    seconds = np.array([op.seconds for op in program.ops])
    assert statistics.compute_seconds == pytest.approx(seconds.sum())
    again = seconds[indices[kinds == RECOMPUTE]].sum()
    assert statistics.recompute_seconds == pytest.approx(again)
    if seconds.sum() > 0:
        overhead = (seconds.sum() + again) / seconds.sum()
        assert statistics.compute_overhead == pytest.approx(overhead)
    assert statistics.recomputations == (kinds == RECOMPUTE).sum()
    assert (kinds == COMPUTE).sum() == len(program.ops)
    assert statistics.forced_evictions == (kinds == EVICT).sum()
    assert statistics.eager_evictions == graph.evictable[indices[kinds == FREE]].sum()

    requested, evictions, free, nanoseconds = schedule.events.T
    assert statistics.forced_evictions == evictions.sum()
    assert statistics.search_seconds == pytest.approx(nanoseconds.sum() * 1e-9)
    assert (requested % schedule.alignment == 0).all()
    assert (free >= requested).all()
    if len(free):
        rate = (free / schedule.capacity).mean()
        assert statistics.fragmentation_rate == pytest.approx(rate)
        rate = ((free - requested) / schedule.capacity).mean()
        assert statistics.fragmentation_rate_block_used == pytest.approx(rate)
        looks = len(free) + evictions.sum()  # An eviction at a time, at worst.
        assert statistics.pieces_examined <= looks * len(program.tensor_bytes)
    else:
        assert statistics.fragmentation_rate == 0
        assert statistics.pieces_examined == 0

    replayed = replay(graph, schedule)
    assert statistics.max_live_bytes == replayed.max_live_bytes
    assert statistics.peak_bytes == replayed.peak_bytes
    rate = statistics.fragmentation_rate
    assert rate == pytest.approx(replayed.fragmentation)
    rate = statistics.fragmentation_rate_block_used
    assert rate == pytest.approx(replayed.fragmentation_block_used)


def test_coop_examines_every_piece_once_per_event():
    program = chain(30, 64)
    capacity = peak_without_eviction(program) // 2
    schedule = _ext.plan(program.graph(), capacity, _ext.PlanOptions())
    pieces = capacity // 64 + 1
    assert len(schedule.events) > 0
    assert schedule.statistics.pieces_examined <= len(schedule.events) * pieces


@pytest.mark.parametrize("length", [64, 256, 1024, 4096])
def test_dtr_needs_linear_time_in_square_root_memory(length):
    # Theorem 3.1 of the DTR paper: h_e*, n equal operations, budget 2 sqrt(n).
    budget = 2 * math.isqrt(length) + 4
    options = _ext.PlanOptions(policy="dtr", dtr_neighbourhood="estar")
    schedule = _ext.plan(chain(length, 64).graph(), budget * 64, options)
    assert isinstance(schedule, _ext.Schedule)
    assert schedule.statistics.compute_overhead < 3


def test_repr_of_statistics():
    schedule = _ext.unconstrained(chain(2, 64).graph(), _ext.PlanOptions())
    assert repr(schedule.statistics) == (
        "Statistics(compute_overhead=1, forced_evictions=0, eager_evictions=3, "
        "recomputations=0, peak_bytes=256)"
    )
