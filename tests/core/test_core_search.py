"""The search: valid, within the bytes it was given, and never worse than the others."""

import numpy as np
import pytest
from core.programs import (
    COMPUTE,
    EVICT,
    FREE,
    RECOMPUTE,
    Op,
    Program,
    chain,
    programs,
    run_schedule,
    run_straight,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from coop_jax import _ext

EFFORT = 20_000
ONLINE = ("coop", "lookahead", "dtr", "dte")


def search_options(**options):
    options = {"search_effort": EFFORT, "packing_effort": 10**6, **options}
    return _ext.PlanOptions(policy="search", **options)


def peak_live_bytes(program: Program, schedule, alignment: int = 64) -> int:
    """The most bytes alive at once."""
    return max(live for _, live in live_bytes(program, schedule, alignment))


def live_bytes(program: Program, schedule, alignment: int = 64):
    """(operation, bytes alive while it runs), replayed from the steps alone."""

    def size(t):
        if t in program.external:
            return 0
        return -(-program.tensor_bytes[t] // alignment) * alignment

    made = {}
    for step, tensor, _, taken_over in schedule.placements.tolist():
        made.setdefault(step, []).append((tensor, taken_over))
    producers = program.producers()
    alive = {t for t in range(len(program.tensor_bytes)) if t not in producers}
    yield -1, sum(map(size, alive))
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind in (EVICT, FREE):
            alive.remove(index)
            continue
        alive.update(t for t, _ in made.get(step, []))
        assert kind in (COMPUTE, RECOMPUTE)
        workspace = -(-program.ops[index].workspace_bytes // alignment) * alignment
        yield index, sum(map(size, alive)) + workspace


@given(programs(), st.integers(0, 100), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_plans_are_valid_within_capacity_and_no_worse(program, percent, seed):
    graph = program.graph()
    bound, _ = _ext.lower_bound(graph)
    peak = _ext.unconstrained(graph, search_options()).statistics.max_live_bytes
    capacity = bound + (max(peak, bound) - bound) * percent // 100
    for limits_live_bytes in (False, True):
        options = search_options(seed=seed, limits_live_bytes=limits_live_bytes)
        schedule = _ext.plan(graph, capacity, options)
        online = [_ext.plan(graph, capacity, _ext.PlanOptions(policy=p)) for p in ONLINE]
        costs = [
            plan.statistics.recompute_seconds
            for plan in online
            if isinstance(plan, _ext.Schedule)
        ]
        if not isinstance(schedule, _ext.Schedule):
            assert not costs
            continue
        assert _ext.validate(graph, schedule) == []
        assert schedule.statistics.recompute_seconds <= min(costs, default=np.inf)
        live = peak_live_bytes(program, schedule)
        assert live <= capacity
        assert live == schedule.statistics.max_live_bytes
        if not limits_live_bytes:
            assert schedule.statistics.peak_bytes <= capacity
        straight = run_straight(program)
        for t, value in run_schedule(program, schedule).items():
            assert value == straight[t]


def test_the_same_seed_gives_the_same_plan():
    graph = chain(40).graph()
    plans = [_ext.plan(graph, 20 * 1024, search_options(seed=7)) for _ in range(2)]
    np.testing.assert_array_equal(plans[0].steps, plans[1].steps)
    np.testing.assert_array_equal(plans[0].placements, plans[1].placements)


def test_more_effort_is_not_worse():
    graph = chain(60).graph()
    costs = [
        _ext.plan(
            graph, 14 * 1024, search_options(search_effort=effort)
        ).statistics.recompute_seconds
        for effort in (10_000, 2_000_000)
    ]
    assert costs[1] <= costs[0]


@pytest.mark.parametrize(("slots", "by_hand"), [(42, 0), (22, 20), (12, 33)])
def test_a_chain_needs_no_more_than_checkpoints_placed_by_hand(slots, by_hand):
    # 22: every other of 40 activations is kept, the rest made again once. 12: every fifth
    # or sixth is kept (7), and each segment made again from there but its kept end.
    schedule = _ext.plan(
        chain(40).graph(), slots * 1024, search_options(search_effort=2_000_000)
    )
    assert schedule.statistics.recomputations <= by_hand


def test_a_source_behind_its_last_use_is_kept_where_that_is_cheaper():
    # Tensor 1 is dear and small, 2 is cheap and large and made from it; 1 is not read
    # again by the program, but kept it makes the way back to 2 cheap.
    ops = [
        Op([0], [1], seconds=100),
        Op([1], [2], seconds=1),
        Op([2], [3], seconds=1),
        Op([3], [4], seconds=1),
        Op([2, 4], [5], seconds=1),
    ]
    program = Program(ops, [0, 64, 640, 640, 640, 64], external={0}, output={5})
    schedule = _ext.plan(
        program.graph(), 640 + 640 + 64, search_options(limits_live_bytes=True)
    )
    assert schedule.statistics.recompute_seconds == 1


def test_only_what_needs_more_uses_more_than_is_preferred():
    program = chain(30)
    greedy = 29  # The last operation forward, with a workspace of half of the rest.
    program.ops[greedy].workspace_bytes = 16 * 1024
    graph = program.graph()
    capacity, preferred = 30 * 1024, 12 * 1024
    options = search_options(limits_live_bytes=True, search_effort=2_000_000)
    usual = _ext.plan(graph, capacity, options)
    frugal = _ext.plan(graph, capacity, options, preferred)
    assert _ext.validate(graph, frugal) == []
    assert max(live for op, live in live_bytes(program, usual) if op != greedy) > preferred
    for op, live in live_bytes(program, frugal):
        assert live <= (18 * 1024 if op == greedy else preferred)


def test_what_is_preferred_gives_way_where_it_cannot_be_had():
    graph = chain(30).graph()
    options = search_options(limits_live_bytes=True)
    frugal = _ext.plan(graph, 20 * 1024, options, 1)
    assert frugal.statistics.max_live_bytes < 20 * 1024
    assert _ext.validate(graph, frugal) == []


def test_gradients_that_are_made_last_do_not_bring_back_the_largest_tensor():
    """Half the chain is dropped, and the way back leads over an operation that needs
    nearly the whole pool: it must not run again."""
    program = chain(40)
    program.tensor_bytes[40] = 8 * 1024
    program.ops[39].workspace_bytes = 2 * 1024
    schedule = _ext.plan(
        program.graph(),
        16 * 1024,
        search_options(search_effort=2_000_000, limits_live_bytes=True),
    )
    assert schedule.statistics.compute_overhead < 1.6
    again = [op for kind, op in schedule.steps.tolist() if kind == RECOMPUTE]
    assert 39 not in again


def test_nothing_below_the_lower_bound():
    program = chain(10)
    bound, _ = _ext.lower_bound(program.graph())
    failure = _ext.plan(program.graph(), bound - 64, search_options())
    assert isinstance(failure, _ext.PlanFailure)
