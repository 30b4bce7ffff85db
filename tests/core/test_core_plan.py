"""Plans: golden schedules, and every policy on random programs."""

import itertools

import numpy as np
import pytest
from core.programs import (
    Op,
    Program,
    chain,
    peak_without_eviction,
    programs,
    run_schedule,
    run_straight,
    steps_as_text,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coop_jax import _ext

MIB = 2**20
# Every policy and every ablation, each alone and all together.
OPTIONS = {
    "coop": {},
    "coop_one_by_one": {"sliding_window": False},
    "coop_one_side": {"partition": False},
    "coop_copy_on_write": {"recomputable_in_place": False},
    "coop_dead_in_place": {"recomputable_in_place": False, "copy_on_write": False},
    "coop_nothing": {
        "sliding_window": False,
        "partition": False,
        "recomputable_in_place": False,
    },
    "coop_threshold": {"density_threshold": 0.05, "alignment": 256},
    "dtr_estar": {"policy": "dtr", "dtr_neighbourhood": "estar"},
    "dtr_eq": {"policy": "dtr", "dtr_neighbourhood": "eq"},
    "dtr_local": {"policy": "dtr", "dtr_neighbourhood": "local"},
    "dtr_sampling": {"policy": "dtr", "sampling": True, "ignore_small": True},
    "dtr_in_place": {"policy": "dtr", "copy_on_write": False},
    "dte": {"policy": "dte"},
    "dte_in_place": {"policy": "dte", "copy_on_write": False, "alignment": 1},
    "lookahead": {"policy": "lookahead"},
    "lookahead_one_side": {"policy": "lookahead", "partition": False, "alignment": 256},
    "lookahead_copy_on_write": {"policy": "lookahead", "recomputable_in_place": False},
}


def plan(program: Program, capacity: int, **options):
    """A valid schedule; fails the test if there is none."""
    graph = program.graph()
    schedule = _ext.plan(graph, capacity, _ext.PlanOptions(**options))
    assert isinstance(schedule, _ext.Schedule), schedule
    assert _ext.validate(graph, schedule) == []
    return schedule


def held_chain() -> Program:
    """x1 = ones; x2 = x1 + 2; del x1; x3 = x2 + 2; ... x6; all handles but x1 held.

    The authors' own test, with their costs: elements read and written.
    """
    ops = [Op([], [0], seconds=1)]
    ops += [Op([k], [k + 1], seconds=2) for k in range(5)]
    return Program(ops, [4 * MIB] * 6, releases=[(1, 0)])


def test_golden_chain_of_the_reference():
    # x2 is evicted for x5. For x6 it is x4, not the older x3: the eviction of x2 has
    # raised the cost of x3.
    schedule = plan(held_chain(), 12 * MIB, partition=False)
    assert steps_as_text(schedule) == "C0 C1 F0 C2 C3 E1 C4 E3 C5"


def in_place_program(first_seconds: float) -> Program:
    """x1 = ones; x2 = x1 * -2; x3 = x2 - 2; x4 = relu_(x2); then reads of x3, x1."""
    return Program(
        [
            Op([], [0], seconds=first_seconds),
            Op([0], [1], seconds=2),
            Op([1], [2], seconds=2),
            Op([1], [3], seconds=2),
            Op([3], [4], seconds=2),
            Op([2], [5], seconds=2),
            Op([0], [6], seconds=2),
        ],
        [4 * MIB] * 5 + [0, 0],
        in_place=[(3, 1, 3)],
    )


def test_golden_in_place_allocates_nothing():
    # All three tensors stay: relu_ takes over the block of x2.
    schedule = plan(in_place_program(1), 12 * MIB, partition=False)
    assert steps_as_text(schedule).startswith("C0 C1 C2 F1 C3 ")
    (x2,) = [row for row in schedule.placements.tolist() if row[1] == 1]
    (x4,) = [row for row in schedule.placements.tolist() if row[1] == 3]
    assert x4[2] == x2[2]
    assert x4[3] == 1


def test_golden_in_place_input_is_recomputed():
    # x1 is dear, so x3 is evicted for x5; its way back leads through the old x2.
    schedule = plan(in_place_program(100), 12 * MIB, partition=False)
    assert steps_as_text(schedule) == (
        "C0 C1 C2 F1 C3 E2 C4 F3 F4 R1 R2 F1 C5 F2 F5 C6 F0 F6"
    )


def test_golden_recomputable_in_place():
    """The output overwrites an input that is needed later, and comes back."""
    program = Program(
        [
            Op([], [0], seconds=50),
            Op([0], [1], seconds=1),
            Op([1], [2], seconds=1),
            Op([2], [3]),
            Op([1], [4]),
            Op([0], [5]),
        ],
        [64, 64, 64, 0, 0, 0],
        in_place=[(2, 1, 2)],
    )
    # A third block does not fit, and tensor 0 is dear.
    schedule = plan(program, 128)
    assert steps_as_text(schedule) == "C0 C1 E1 C2 C3 F2 F3 R1 C4 F1 F4 C5 F0 F5"
    _, x1, x2 = schedule.placements.tolist()[:3]
    assert x2 == [3, 2, x1[2], 1]
    # Switched off, it has to go nevertheless.
    schedule = plan(program, 128, recomputable_in_place=False)
    assert steps_as_text(schedule) == "C0 C1 E0 C2 C3 F2 F3 C4 F1 F4 R0 C5 F0 F5"


def test_lookahead_keeps_what_is_needed_soon():
    program = Program(
        [
            Op([], [0], seconds=10),
            Op([], [1], seconds=10),
            Op([1], [2]),
            Op([], [3]),
            Op([0, 3], [4]),
            Op([1], [5]),
        ],
        [64, 64, 0, 64, 0, 0],
    )
    # Tensor 0 is stale, but read next: Coop evicts it and has to evict 1 as well.
    schedule = plan(program, 128)
    assert schedule.statistics.recompute_seconds == 20
    schedule = plan(program, 128, policy="lookahead")
    assert steps_as_text(schedule) == "C0 C1 C2 F2 E1 C3 C4 F0 F3 F4 R1 C5 F1 F5"
    assert schedule.statistics.recompute_seconds == 10


def test_lookahead_keeps_the_way_back_to_what_is_needed_soon():
    program = Program(
        [
            Op([], [0], seconds=10),
            Op([0], [1], seconds=1),
            Op([], [2], seconds=10),
            Op([], [3]),
            Op([3], [4]),
            Op([1, 4], [5]),
            Op([2], [6]),
            Op([0], [7]),
        ],
        [64, 64, 64, 64, 64, 0, 0, 0],
    )
    # Tensor 1 goes for 3. Though 0 is read last of all, 1 needs it before 2 is read.
    schedule = plan(program, 192, policy="lookahead")
    assert steps_as_text(schedule) == (
        "C0 C1 C2 E1 C3 E2 C4 F3 R1 C5 F1 F4 F5 R2 C6 F2 F6 C7 F0 F7"
    )


def test_lookahead_drops_for_free_what_is_never_needed_again():
    # Tensor 0 is held for good, but nothing reads it any more: dear as it is, it goes.
    ops = [Op([], [0], seconds=100), Op([], [1]), Op([], [2]), Op([1, 2], [3])]
    program = Program(ops, [64, 64, 64, 0], releases=[(3, 1), (3, 2), (3, 3)])
    schedule = plan(program, 128, policy="lookahead")
    assert steps_as_text(schedule) == "C0 C1 E0 C2 C3 F1 F2 F3"


def test_mutation_keeps_a_pinned_tensor_in_its_place():
    program = Program(
        [Op([0], [1]), Op([0, 1], [2]), Op([2], [3])],
        [64, 64, 64, 64],
        pinned={0, 2},
        overwrites=[(1, 0, 2)],
    )
    schedule = plan(program, 128)
    assert steps_as_text(schedule) == "C0 F0 C1 F1 C2 F3"
    assert schedule.placements[1].tolist() == [2, 2, 0, 0]
    # Copy on write holds the old one until the operation has run: it moves.
    failure = _ext.plan(program.graph(), 128, _ext.PlanOptions(policy="dte"))
    assert isinstance(failure, _ext.PlanFailure)
    schedule = plan(program, 192, policy="dte")
    assert schedule.copy_on_write
    assert steps_as_text(schedule) == "C0 C1 F0 F1 C2 F3"
    assert schedule.placements[1].tolist() == [1, 2, 128, -1]


def test_partition_puts_the_cheap_right_and_the_others_left():
    ops = [Op([], [0], seconds=100), Op([], [1], seconds=1), Op([0, 1], [2])]
    program = Program([*ops, Op([2, 0, 1], [3])], [64, 64, 64, 0])
    offsets = {row[1]: row[2] for row in plan(program, 640).placements.tolist()}
    assert offsets == {0: 0, 1: 576, 2: 512, 3: 0}
    one_side = plan(program, 640, partition=False).placements.tolist()
    assert {row[1]: row[2] for row in one_side} == {0: 0, 1: 64, 2: 128, 3: 0}


def test_density_threshold_is_the_cut_between_two_clusters():
    seconds = [1.0, 1.1, 0.9, 50.0, 55.0]
    ops = [Op([], [k], seconds=cost) for k, cost in enumerate(seconds)]
    schedule = plan(Program(ops, [64] * 5), 640)
    threshold = schedule.statistics.density_threshold
    assert threshold == pytest.approx(np.sqrt(1.1 * 50.0) / 64)
    assert plan(Program(ops, [64] * 5), 640, density_threshold=0.25).statistics
    assert plan(chain(4), 10000).statistics.density_threshold == 0


def test_sibling_outputs_that_nobody_needs_are_freed_at_once():
    # Operation 0 makes 0 and 1; 1 is done with when 0 comes back.
    program = Program(
        [
            Op([], [0, 1]),
            Op([1], [2]),
            Op([], [3]),
            Op([3], [4]),
            Op([0], [5]),
        ],
        [64, 64, 0, 128, 0, 0],
    )
    schedule = plan(program, 128)
    assert steps_as_text(schedule) == ("C0 C1 F1 F2 E0 C2 C3 F3 F4 R0 F1 C4 F0 F5")


def test_intermediates_of_a_recomputation_are_freed_as_soon_as_used():
    # 0 -> 1 -> 2 -> 3 -> 4 with room for two: the way back to 4 needs no more.
    program = Program(
        [
            *(Op([k - 1] if k else [], [k]) for k in range(5)),
            Op([], [5]),
            Op([5], [6]),
            Op([4], [7]),
        ],
        [64, 64, 64, 64, 64, 128, 0, 0],
    )
    schedule = plan(program, 128)
    assert steps_as_text(schedule).endswith("R0 R1 F0 R2 F1 R3 F2 R4 F3 C7 F4 F7")
    assert schedule.statistics.peak_bytes == 128


def test_outputs_are_brought_back_at_the_end():
    program = Program([Op([], [0]), Op([], [1]), Op([1], [2])], [64, 128, 0])
    program.output = {0}
    schedule = plan(program, 128)
    assert steps_as_text(schedule) == "C0 E0 C1 C2 F1 F2 R0"


def test_unused_graph_inputs_are_freed_first():
    program = Program([Op([], [1])], [64, 64])
    assert steps_as_text(plan(program, 64)) == "F0 C0 F1"


def test_empty_program():
    schedule = plan(Program([], []), 0)
    assert schedule.steps.shape == (0, 2)
    assert schedule.placements.shape == (0, 4)
    assert schedule.statistics.compute_overhead == 1


def test_failure_says_what_was_asked_for():
    program = Program([Op([], [0]), Op([0], [1])], [64, 100])
    failure = _ext.plan(program.graph(), 128, _ext.PlanOptions())
    assert isinstance(failure, _ext.PlanFailure)
    assert failure.reason == "out_of_memory"
    assert (failure.op, failure.requested_by) == (1, 1)
    assert failure.requested_bytes == 128
    assert (failure.free_bytes, failure.largest_free_bytes) == (64, 64)
    assert (failure.pinned_bytes, failure.capacity) == (64, 128)
    assert repr(failure).startswith("PlanFailure(reason='out_of_memory', op=1, ")


def test_failure_to_place_the_graph_inputs():
    failure = _ext.plan(Program([Op([0], [])], [100]).graph(), 64, _ext.PlanOptions())
    assert (failure.op, failure.requested_bytes) == (-1, 128)


def test_overhead_limit_stops_a_hopeless_plan():
    program, options = chain(64, 64), {"policy": "dtr"}
    assert plan(program, 320, **options).statistics.compute_overhead > 3
    failure = _ext.plan(program.graph(), 320, _ext.PlanOptions(overhead_limit=3, **options))
    assert failure.reason == "overhead_limit"


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(program=programs(), tightness=st.sampled_from([0.0, 0.0, 0.1, 0.3, 0.7]))
def test_plans_are_valid_and_compute_the_right_values(name, program, tightness):
    options = {"overhead_limit": 50, **OPTIONS[name]}
    graph = program.graph()
    smallest = _ext.minimum_pool(graph, _ext.PlanOptions(**options))
    assert smallest is not None
    peak = peak_without_eviction(program, **options)
    capacity = int(smallest.capacity + (peak - smallest.capacity) * tightness)
    schedule = _ext.plan(graph, capacity, _ext.PlanOptions(**options))
    if isinstance(schedule, _ext.PlanFailure):  # Feasibility is not monotone.
        schedule = smallest.schedule
    assert _ext.validate(graph, schedule) == []
    bound, _ = _ext.lower_bound(graph, schedule.alignment)
    assert schedule.statistics.peak_bytes <= schedule.capacity
    assert bound <= schedule.statistics.max_live_bytes <= schedule.capacity
    expected = run_straight(program)
    for t, value in run_schedule(program, schedule).items():
        assert value == expected[t]


@pytest.mark.parametrize("name", OPTIONS)
def test_same_graph_same_plan(name):
    seconds = [float(1 + k % 7) for k in range(120)]
    program = chain(60, 100, seconds)
    capacity = peak_without_eviction(program) // 2
    first, second = (plan(program, capacity, **OPTIONS[name]) for _ in range(2))
    for field in ("steps", "placements", "initial_placements", "workspaces"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    np.testing.assert_array_equal(first.events[:, :3], second.events[:, :3])


def test_sampling_depends_on_the_seed():
    program = chain(100, 64, [float(1 + k % 7) for k in range(200)])
    capacity = peak_without_eviction(program) // 2
    options = {"policy": "dtr", "sampling": True}
    texts = {
        steps_as_text(plan(program, capacity, seed=seed, **options)) for seed in range(4)
    }
    assert len(texts) > 1


def test_all_switches_agree_where_there_is_room_for_everything():
    program = chain(12, 100)
    capacity = 100_000
    reference = steps_as_text(plan(program, capacity))
    switches = ("sliding_window", "partition", "recomputable_in_place")
    for values in itertools.product([False, True], repeat=3):
        options = dict(zip(switches, values, strict=True))
        assert steps_as_text(plan(program, capacity, **options)) == reference


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"},
         "PlanOptions: `policy` must be one of 'coop', 'dtr', 'dte', 'lookahead', "
         "'search', got 'best'"),
        ({"dtr_neighbourhood": "far"},
         "`dtr_neighbourhood` must be one of 'estar', 'eq', 'local', got 'far'"),
        ({"alignment": 0}, "`alignment` must be a power of two, got 0"),
        ({"alignment": 96}, "`alignment` must be a power of two, got 96"),
        ({"density_threshold": -1.0}, "must not be negative, got -1"),
        ({"overhead_limit": 0.5}, "`overhead_limit` must be at least 1, got 0.5"),
    ],
)  # fmt: skip
def test_options_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        _ext.PlanOptions(**options)


def test_options_show_what_they_resolve_to():
    assert not _ext.PlanOptions().copy_on_write
    assert _ext.PlanOptions(recomputable_in_place=False).copy_on_write
    assert _ext.PlanOptions(policy="dtr").copy_on_write
    assert not _ext.PlanOptions(policy="dtr", copy_on_write=False).copy_on_write
    assert not _ext.PlanOptions(policy="lookahead").copy_on_write
    assert _ext.PlanOptions(policy="dte").policy == "dte"
    assert _ext.PlanOptions().dtr_neighbourhood == "eq"


def test_plan_refuses_a_negative_capacity():
    with pytest.raises(ValueError, match="plan: `capacity` must not be negative, got -1"):
        _ext.plan(chain(2).graph(), -1, _ext.PlanOptions())


def test_arrays_are_read_only_and_outlive_the_schedule():
    steps = plan(chain(3), 100_000).steps
    assert steps.dtype == np.int64
    assert steps[0].tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        steps[0, 0] = 1
