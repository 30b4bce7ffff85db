"""The validator finds every kind of corruption, one test each."""

import numpy as np
import pytest
from core.programs import COMPUTE, EVICT, FREE, RECOMPUTE, Op, Program, chain

from coop_jax import _ext

PROGRAM = Program(
    [
        Op([0], [2]),
        Op([2, 1], [3], workspace_bytes=64),
        Op([3], [4]),
        Op([4, 1], [5]),
    ],
    # 0 is external, 1 pinned and overwritten by 5, 4 takes over 3.
    [64, 64, 64, 64, 64, 64],
    external={0},
    pinned={1, 5},
    output={4},
    in_place=[(2, 3, 4)],
    overwrites=[(3, 1, 5)],
)


class Draft:
    """A valid schedule of PROGRAM as lists, to be spoilt."""

    def __init__(self):
        self.steps = [
            [COMPUTE, 0],
            [COMPUTE, 1],
            [FREE, 2],
            [FREE, 3],
            [COMPUTE, 2],
            [FREE, 1],
            [COMPUTE, 3],
        ]
        self.placements = [
            [0, 2, 64, -1],
            [1, 3, 128, -1],
            [4, 4, 128, 3],
            [6, 5, 0, 1],
        ]
        self.initial_placements = [[1, 0]]
        self.workspaces = [[1, 192]]
        self.capacity = 256
        self.peak_bytes = 256
        self.max_live_bytes = None
        self.copy_on_write = False

    def violations(self, program=PROGRAM, **limits):
        def table(rows, columns):
            return np.asarray(rows, np.int64).reshape(-1, columns)

        schedule = _ext.Schedule(
            steps=table(self.steps, 2),
            placements=table(self.placements, 4),
            initial_placements=table(self.initial_placements, 2),
            workspaces=table(self.workspaces, 2),
            capacity=self.capacity,
            peak_bytes=self.peak_bytes,
            copy_on_write=self.copy_on_write,
            max_live_bytes=self.max_live_bytes,
        )
        return _ext.validate(program.graph(), schedule, **limits)


@pytest.fixture
def draft():
    return Draft()


def test_the_draft_is_valid(draft):
    assert draft.violations() == []


def test_unknown_step_kind(draft):
    draft.steps.append([4, 0])
    assert draft.violations() == ["step 7: malformed: unknown step kind 4"]


def test_operation_out_of_range(draft):
    draft.steps.append([COMPUTE, 4])
    assert draft.violations() == ["step 7: malformed: operation 4 is not one of the 4"]


def test_tensor_out_of_range(draft):
    draft.steps.append([EVICT, -1])
    assert draft.violations() == ["step 7: malformed: tensor -1 is not one of the 6"]


def test_placement_of_no_step(draft):
    draft.placements.append([9, 2, 64, -1])
    expected = "step 7: malformed: a placement or workspace of no step"
    assert draft.violations() == [expected]


def test_placement_of_a_step_that_runs_nothing(draft):
    draft.placements.insert(2, [3, 2, 64, -1])
    (text,) = draft.violations()
    assert text.startswith("step 4: malformed: a placement of step 3 that runs no")


def test_operation_computed_twice(draft):
    draft.steps.append([COMPUTE, 3])
    assert any(
        text == "step 7: order: operation 3 is computed, it is 4's turn"
        for text in draft.violations()
    )


def test_operation_left_out(draft):
    del draft.steps[5:], draft.placements[3]
    assert draft.violations() == ["step 5: order: only 3 of 4 operations are computed"]


def test_recomputation_of_what_may_not_run_twice(draft):
    program = Program(**{**vars(PROGRAM), "ops": list(PROGRAM.ops)})
    program.ops[0] = Op([0], [2], recomputable=False)
    draft.steps.append([RECOMPUTE, 0])
    draft.placements.append([7, 2, 64, -1])
    expected = "step 7: not_recomputable: operation 0 may not run twice"
    assert draft.violations(program) == [expected]


def test_recomputation_before_the_first_run(draft):
    draft.steps[0] = [RECOMPUTE, 0]
    assert draft.violations()[0] == (
        "step 0: not_recomputable: operation 0 is recomputed before it was computed"
    )


def test_missing_operand(draft):
    draft.steps[1], draft.steps[2] = draft.steps[2], draft.steps[1]
    draft.placements[1][0] = 2
    draft.workspaces[0][0] = 2
    expected = "step 2: missing_operand: operation 1 reads tensor 2, which is not resident"
    assert draft.violations() == [expected]


def test_read_after_overwrite(draft):
    draft.steps += [[RECOMPUTE, 0], [RECOMPUTE, 1]]
    draft.placements += [[7, 2, 64, -1], [8, 3, 192, -1]]
    draft.workspaces += [[8, 256]]
    draft.capacity = draft.peak_bytes = 320
    expected = "step 8: overwritten: operation 1 reads tensor 1, which has been overwritten"
    assert draft.violations() == [expected]


def test_result_without_a_block(draft):
    del draft.placements[0]
    assert draft.violations()[0] == (
        "step 0: placement: operation 0 makes tensor 2 but nowhere to put it"
    )


def test_block_of_what_the_operation_does_not_make(draft):
    draft.placements.insert(1, [0, 4, 192, -1])
    assert "step 0: placement: operation 0 makes no tensor 4 in the pool" in (
        draft.violations()
    )


def test_block_of_what_is_resident(draft):
    draft.placements.insert(1, [0, 2, 192, -1])
    expected = "step 0: placement: tensor 2 is placed but resident or overwritten"
    assert draft.violations() == [expected]


def test_graph_input_without_a_block(draft):
    draft.initial_placements = []
    assert "step -1: placement: graph input 1 has no initial placement" in (
        draft.violations()
    )


def test_initial_placement_of_what_is_made_later(draft):
    draft.initial_placements.append([4, 192])
    assert any("initial placement of tensor 4" in text for text in draft.violations())


def test_workspace_left_out(draft):
    draft.workspaces = []
    draft.peak_bytes = 192
    expected = "step 1: placement: operation 1 needs 1 workspaces, got 0"
    assert draft.violations() == [expected]


def test_block_outside_the_pool(draft):
    draft.capacity = 250
    expected = "step 1: out_of_range: a workspace at [192, 256) is outside the pool of 250"
    assert draft.violations()[0] == expected


def test_negative_offset(draft):
    draft.placements[0][2] = -64
    assert draft.violations() == [
        "step 0: out_of_range: tensor 2 at [-64, 0) is outside the pool of 256"
    ]


def test_misaligned_block(draft):
    draft.workspaces[0][1] = 200
    draft.capacity, draft.peak_bytes = 512, 264
    expected = "step 1: alignment: a workspace at 200 is not aligned to 64"
    assert draft.violations() == [expected]


def test_overlapping_tensors(draft):
    draft.placements[0][2] = 0
    assert draft.violations()[0] == (
        "step 0: overlap: tensor 2 at [0, 64) overlaps tensor 1 at [0, 64)"
    )


def test_overlapping_workspace(draft):
    draft.workspaces[0][1] = 128
    draft.peak_bytes = 192
    expected = "step 1: overlap: a workspace at [128, 192) overlaps tensor 3 at [128, 192)"
    assert draft.violations() == [expected]


def test_take_over_the_graph_does_not_allow(draft):
    program = Program(**{**vars(PROGRAM), "in_place": []})
    assert draft.violations(program)[-1] == (
        "step 4: take_over: operation 2 may not let tensor 4 take over the block of "
        "tensor 3"
    )


def test_take_over_of_another_place(draft):
    draft.placements[2][2] = 64
    expected = (
        "step 4: take_over: tensor 4 at 64 takes over the block of tensor 3, which is "
        "at 128"
    )
    assert draft.violations() == [expected]


def test_take_over_of_what_was_not_dropped(draft):
    del draft.steps[3]
    for row in draft.placements[2:]:
        row[0] -= 1
    assert draft.violations()[0] == (
        "step 3: take_over: tensor 3 is taken over but not dropped right before"
    )


def test_drop_of_what_is_not_resident(draft):
    draft.steps.append([FREE, 2])
    expected = "step 7: not_resident: tensor 2 is dropped but not resident"
    assert draft.violations() == [expected]


def test_drop_of_a_pinned_tensor(draft):
    draft.steps.append([EVICT, 5])
    assert draft.violations() == ["step 8: pinned: tensor 5 is pinned and dropped"]


def test_drop_of_an_external_tensor(draft):
    draft.steps.append([EVICT, 0])
    assert draft.violations() == ["step 7: pinned: tensor 0 is external and dropped"]


def test_move_of_a_pinned_tensor(draft):
    draft.placements[3] = [6, 5, 64, -1]
    assert draft.violations() == [
        "step 6: missing_operand: operation 3 reads tensor 1, which is not resident",
        "step 6: pinned: tensor 1 is pinned, but tensor 5 overwrites it at another place",
        "step 6: pinned: tensor 1 is pinned and dropped",
    ]


def test_copy_on_write_may_move_a_pinned_tensor(draft):
    draft.steps[5:] = [[COMPUTE, 3], [FREE, 1]]
    draft.placements[3] = [5, 5, 64, -1]
    draft.copy_on_write = True
    assert draft.violations() == []


def test_missing_output(draft):
    draft.steps.append([FREE, 4])
    expected = "step 8: missing_output: output 4 is not resident at the end"
    assert draft.violations() == [expected]


def test_wrong_peak(draft):
    draft.peak_bytes = 255
    expected = "step 7: peak: the highest end address is 256, claimed 255"
    assert draft.violations() == [expected]


def test_right_claims_and_kept_promises(draft):
    draft.max_live_bytes = 256
    assert draft.violations(pool_bytes=256, live_bytes=256) == []


@pytest.mark.parametrize("claimed", [0, 192, 255, 257])
def test_wrong_live_bytes(draft, claimed):
    """More is as wrong as less: what is claimed is what budgets are compared with."""
    draft.max_live_bytes = claimed
    expected = (
        f"step 7: live_bytes: the most bytes in use at once are 256, claimed {claimed}"
    )
    assert draft.violations() == [expected]


def test_live_bytes_do_not_depend_on_addresses(draft):
    """A block lies in another's place, and one far away."""
    draft.placements[0][2] = 0
    draft.workspaces[0][1] = 4096
    draft.capacity, draft.peak_bytes = 8192, 4096 + 64
    draft.max_live_bytes = 255
    assert draft.violations()[-1] == (
        "step 7: live_bytes: the most bytes in use at once are 256, claimed 255"
    )


def test_broken_promises(draft):
    assert draft.violations(pool_bytes=255) == [
        "step 7: limit: the highest end address needs 256 bytes, promised were 255"
    ]
    assert draft.violations(live_bytes=0) == [
        "step 7: limit: what is in use at once needs 256 bytes, promised were 0"
    ]


@pytest.mark.parametrize("policy", ["coop", "dtr", "dte", "lookahead", "search"])
def test_a_plan_of_one_graph_claims_too_little_of_another(policy):
    """Operations take longer, addresses are the same."""
    options = _ext.PlanOptions(policy=policy, overhead_limit=20)
    schedule = _ext.minimum_pool(chain(8).graph(), options).schedule
    assert schedule.has_statistics
    again = int((schedule.steps[:, 0] == RECOMPUTE).sum())
    assert again > 0
    slower = chain(8, seconds=[2.0] * 16).graph()
    assert _ext.validate(slower, schedule) == [
        f"step {len(schedule.steps)}: statistics: `compute_seconds` is 32, claimed 16",
        f"step {len(schedule.steps)}: statistics: `recompute_seconds` is {2 * again}, "
        f"claimed {again}",
    ]


def test_schedule_refuses_misshapen_tables(draft):
    with pytest.raises(ValueError, match=r"Schedule: `steps` must have shape \(n, 2\)"):
        _ext.Schedule(
            np.zeros((1, 3), np.int64),
            np.zeros((0, 4), np.int64),
            np.zeros((0, 2), np.int64),
            np.zeros((0, 2), np.int64),
            64,
            0,
        )


def test_every_schedule_survives_the_way_through_arrays():
    graph = PROGRAM.graph()
    schedule = _ext.plan(graph, 256, _ext.PlanOptions())
    copy = _ext.Schedule(
        schedule.steps,
        schedule.placements,
        schedule.initial_placements,
        schedule.workspaces,
        schedule.capacity,
        schedule.statistics.peak_bytes,
        schedule.alignment,
        schedule.copy_on_write,
    )
    assert _ext.validate(graph, copy) == []
