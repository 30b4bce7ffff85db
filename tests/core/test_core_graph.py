"""Graph: what it derives, and what it refuses."""

import re

import numpy as np
import pytest
from core.programs import NEVER, Op, Program, chain, programs
from hypothesis import given

from coop_jax import _ext


def test_derives_producers_and_last_uses():
    graph = Program(
        [Op([0], [1]), Op([1, 0], [2, 3]), Op([2], [4])], [64] * 5, output={3}
    ).graph()
    assert graph.num_ops == 3
    assert graph.num_tensors == 5
    assert graph.producer.tolist() == [-1, 0, 1, 1, 2]
    # Tensor 3 is an output: read at the end. Nothing reads tensor 4.
    assert graph.last_use.tolist() == [1, 1, 2, 3, 2]


def test_graph_input_in_the_pool_bounds_what_is_made_from_it():
    # Tensor 1 is made from 0, which is freed after operation 1.
    graph = Program([Op([0], [1]), Op([0], [2]), Op([1, 2], [3])], [64] * 4).graph()
    assert graph.deadline.tolist() == [1, 1, 1, 1]
    assert graph.evictable.tolist() == [False, False, False, False]


def test_external_inputs_never_expire_unless_overwritten():
    program = Program([Op([0], [1]), Op([1], [2]), Op([1], [3])], [64] * 4)
    program.external = {0}
    assert program.graph().deadline.tolist() == [NEVER] * 4
    assert program.graph().evictable.tolist() == [False, True, True, True]
    # Operation 1 overwrites tensor 0 with tensor 2: tensor 1 is still read at 2.
    program.external = {0, 2}
    program.ops[1].inputs = [1, 0]
    program.overwrites = [(1, 0, 2)]
    assert program.graph().deadline.tolist() == [1, 1, NEVER, 1]
    assert program.graph().evictable.tolist() == [False, False, False, False]


def test_recomputation_right_before_the_overwriting_operation_is_allowed():
    program = Program(
        [Op([0], [1]), Op([0, 1], [2])],
        [64] * 3,
        external={0, 2},
        overwrites=[(1, 0, 2)],
    )
    assert program.graph().deadline.tolist() == [1, 1, NEVER]
    assert program.graph().evictable.tolist() == [False, True, False]


def test_outputs_of_operations_that_may_not_run_twice_are_not_evictable():
    program = chain(3)
    program.ops[0].recomputable = False
    graph = program.graph()
    # Tensor 1 is last read by operation 4; tensors 2 and 3 are made from it.
    assert graph.deadline.tolist()[:4] == [NEVER, 4, 4, 4]
    assert graph.evictable.tolist()[:4] == [False, False, True, True]


def test_pinned_external_and_empty_tensors_are_not_evictable():
    program = Program([Op([], [0, 1, 2, 3])], [64, 64, 0, 64])
    program.pinned, program.external = {0}, {1}
    assert program.graph().evictable.tolist() == [False, False, False, True]


def test_repeated_operands_count_once():
    program = Program([Op([], [0]), Op([0, 0], [1])], [64, 64])
    assert _ext.lower_bound(program.graph()) == (128, 1)


def valid_arrays():
    program = Program(
        [Op([0], [1]), Op([1], [2]), Op([2, 0], [3])],
        [64] * 4,
        external={0, 3},
        overwrites=[(2, 0, 3)],
        in_place=[(1, 1, 2)],
        releases=[(1, 1), (2, 2)],
    )
    return program.arrays()


def test_the_arrays_of_the_error_tests_are_valid():
    _ext.Graph(**valid_arrays())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("op_seconds", [1.0, -1.0, 1.0], "`op_seconds` must be finite and not "
         "negative, got -1 at operation 1"),
        ("op_seconds", [1.0, np.nan, 1.0], "not negative, got nan at operation 1"),
        ("op_workspace_bytes", [0, 0, -8], "`op_workspace_bytes` must be in [0, "
         "2**48), got -8 at operation 2"),
        ("op_workspace_bytes", [0, 0], "`op_workspace_bytes` must have one entry per "
         "operation (3), got 2"),
        ("op_recomputable", [True], "`op_recomputable` must have one entry per "
         "operation (3), got 1"),
        ("op_inputs_ptr", [0, 1, 2], "`op_inputs_ptr` must have one entry more than "
         "there are operations (4), got 3"),
        ("op_inputs_ptr", [1, 1, 2, 4], "`op_inputs_ptr[0]` must be 0, got 1"),
        ("op_inputs_ptr", [0, 2, 1, 4], "`op_inputs_ptr` must not decrease, but it "
         "does at operation 1: 2 then 1"),
        ("op_inputs_ptr", [0, 1, 2, 3], "`op_inputs_ptr` must end with the length of "
         "`op_inputs` (4), got 3"),
        ("op_inputs", [0, 1, 9, 0], "`op_inputs` of operation 2 names tensor 9, but "
         "there are 4 tensors"),
        ("op_inputs", [2, 1, 2, 0], "operation 0 reads tensor 2, which is made only "
         "by operation 1: operations must be in execution order"),
        ("op_inputs", [1, 1, 2, 0], "operation 0 reads tensor 1, which is made only "
         "by operation 0"),
        ("op_outputs", [1, 1, 3], "tensor 1 has two producers: operations 0 and 1"),
        ("op_outputs", [1, -1, 3], "`op_outputs` of operation 1 names tensor -1"),
        ("tensor_bytes", [64, -1, 64, 64], "`tensor_bytes` must be in [0, 2**48), got "
         "-1 at tensor 1"),
        ("tensor_external", [True, False, False], "`tensor_external` must have one "
         "entry per tensor (4), got 3"),
        ("tensor_pinned", [True, False, False, False], "tensor 0 is both external "
         "(outside the pool) and pinned (inside the pool)"),
        ("tensor_output", [True, False, False, False], "tensor 0 is an output but "
         "overwritten by operation 2"),
        ("tensor_output", [False, True, False, False], "tensor 1 is an output but "
         "released after operation 1"),
        ("in_place", [[7, 1, 2]], "`in_place` names operation 7, but there are 3 "
         "operations"),
        ("in_place", [[1, 0, 2]], "`in_place` of operation 1: tensor 0 is not an input "
         "of the operation"),
        ("in_place", [[1, 1, 3]], "`in_place` of operation 1: tensor 3 is not an "
         "output of the operation"),
        ("in_place", [[2, 2, 3]], "`in_place` of operation 2: tensor 3 is external, "
         "both must be in the pool"),
        ("overwrites", [[2, 2, 3]], "`overwrites` of operation 2: tensors 2 and 3 must "
         "be both external or both pinned"),
        ("overwrites", [[2, 0, 1]], "`overwrites` of operation 2: tensor 1 is not an "
         "output of the operation"),
        ("overwrites", [[2, 0, 3], [2, 0, 3]], "tensor 0 is overwritten twice"),
        ("releases", [[0, 1]], "tensor 1 is released after operation 0 but read "
         "afterwards by operation 1"),
        ("releases", [[0, 2]], "tensor 2 is released after operation 0 but made only "
         "by operation 1"),
        ("releases", [[1, 1], [2, 1]], "tensor 1 is released twice"),
    ],
)  # fmt: skip
def test_refuses(name, value, message):
    arrays = valid_arrays()
    arrays[name] = np.asarray(value, arrays[name].dtype)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        _ext.Graph(**arrays)
    assert str(error.value).startswith("Graph: ")


def test_refuses_reads_after_an_overwrite():
    program = Program(
        [Op([0], [1]), Op([0], [2])], [64] * 3, external={0, 1}, overwrites=[(0, 0, 1)]
    )
    message = "tensor 0 is overwritten by operation 0 but read afterwards by operation 1"
    with pytest.raises(ValueError, match=message):
        program.graph()


def test_refuses_pairs_of_different_sizes():
    program = Program([Op([], [0]), Op([0], [1])], [64, 128], in_place=[(1, 0, 1)])
    with pytest.raises(ValueError, match="0 and 1 must have the same bytes, got 64 and"):
        program.graph()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("op_seconds", np.ones(3, np.float32), TypeError,
         "Graph: `op_seconds` must be an array of float64, got float32"),
        ("op_inputs", np.zeros(4, np.int32), TypeError,
         "Graph: `op_inputs` must be an array of int64, got int32"),
        ("tensor_output", np.zeros(4, np.int64), TypeError,
         "Graph: `tensor_output` must be an array of bool, got int64"),
        ("tensor_bytes", np.zeros((2, 2), np.int64), ValueError,
         "Graph: `tensor_bytes` must be one-dimensional, got shape (2, 2)"),
        ("in_place", np.zeros((1, 2), np.int64), ValueError,
         "Graph: `in_place` must have shape (n, 3), got shape (1, 2)"),
        ("releases", np.zeros(2, np.int64), ValueError,
         "Graph: `releases` must have shape (n, 2), got shape (2,)"),
    ],
)  # fmt: skip
def test_refuses_arrays_of_another_type_or_shape(name, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        _ext.Graph(**{**valid_arrays(), name: value})


def test_strided_arrays_are_read_correctly():
    arrays = valid_arrays()
    arrays["tensor_bytes"] = np.repeat(arrays["tensor_bytes"], 2)[::2]
    arrays["in_place"] = np.asfortranarray(arrays["in_place"])
    assert _ext.Graph(**arrays).last_use.tolist() == [2, 1, 2, 2]


@given(program=programs())
def test_arrays_make_the_same_graph_again(program):
    graph = program.graph()
    arrays = graph.arrays()
    again = _ext.Graph(**arrays)
    for name, array in again.arrays().items():
        np.testing.assert_array_equal(array, arrays[name])
    for name in ("producer", "last_use", "evictable", "deadline"):
        np.testing.assert_array_equal(getattr(again, name), getattr(graph, name))


def test_arrays_keep_releases():
    program = Program([Op([], [0]), Op([0], [1])], [64, 64], releases=[(1, 0)])
    assert program.graph().arrays()["releases"].tolist() == [[1, 0]]
    assert Program(program.ops, [64, 64]).graph().arrays()["releases"] is None
