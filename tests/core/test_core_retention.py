"""What a loop's body keeps for its gradient: the corners of bytes and seconds."""

import random
import re
import time

import numpy as np
import pytest
from core.bodies import Body, random_body
from oracles.retention import corners, least_cost

from coop_jax import _ext


def found(body: Body):
    return _ext.retention_frontier(**body.arrays())


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_corners_are_those_of_all_choices(first):
    numbers = []
    for seed in range(first, first + 100):
        body = random_body(seed, most_equations=7)
        expected = corners(body)
        corner_list = found(body)
        assert [set(c.recomputed.tolist()) for c in corner_list] == expected
        for corner, runs in zip(corner_list, expected, strict=True):
            assert corner.recomputed.tolist() == sorted(runs)
            assert corner.kept.tolist() == sorted(body.kept(runs))
            assert corner.kept_bytes == body.cost(runs)[0]
        numbers.append(len(expected))
    # There is something to choose in many of them.
    assert sum(number > 1 for number in numbers) > 20
    assert max(numbers) > 2


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_a_large_body_is_cheaper_at_any_price(seed):
    body = random_body(seed, most_equations=80)
    costs = [body.cost(corner.recomputed.tolist()) for corner in found(body)]
    for byte_price in (0.0, 0.1, 1.0, 7.0, 1e3):
        cheapest = min(byte_price * size + float(seconds) for size, seconds in costs)
        assert cheapest == pytest.approx(least_cost(body, byte_price), rel=1e-9)


@pytest.mark.parametrize(("num_equations", "limit_seconds"), [(2_000, 1), (100_000, 15)])
def test_time_of_a_large_body(num_equations, limit_seconds):
    """A chain with skips: at the prices of corners, flow has long ways to go."""
    choose = random.Random(0)
    count = num_equations
    body = Body(
        [4096 * choose.randint(1, 3) for _ in range(count + 1)],
        [*range(-1, count)],
        [1e-6 * choose.randint(0, 3) for _ in range(count)],
        [choose.random() < 0.95 for _ in range(count)],
        [[i, max(0, i - choose.randint(1, 5))] for i in range(count)],
        [v for v in range(count + 1) if choose.random() < 0.7],
        1e-10,
    ).arrays()
    start = time.process_time()
    corner_list = _ext.retention_frontier(**body)
    assert time.process_time() - start < limit_seconds
    assert len(corner_list) > 20


def test_nothing_is_needed():
    [corner] = found(Body([64], [0], [1.0], [True], [[]], [], 1.0))
    assert (corner.kept_bytes, len(corner.kept), len(corner.recomputed)) == (0, 0, 0)
    [corner] = found(Body([], [], [], [], [], [], 1.0))
    assert corner.kept_bytes == 0


def test_what_may_not_run_again_is_kept():
    body = Body([1, 8], [-1, 0], [0.0], [False], [[0]], [1], 1.0)
    [corner] = found(body)
    assert (corner.kept_bytes, corner.kept.tolist()) == (8, [1])


def test_making_two_results_costs_once():
    # Either alone is not worth the time.
    body = Body([0, 2, 2], [-1, 0, 0], [3.0], [True], [[0]], [1, 2], 1.0)
    [corner] = found(body)
    assert (corner.kept_bytes, corner.recomputed.tolist()) == (0, [0])


def test_a_chain_has_a_corner_for_each_of_its_prices():
    # Value i + 1 of 2 ** i bytes is made of what is given, for one second.
    sizes = [2**i for i in range(6)]
    body = Body(
        [0, *sizes], [-1, *range(6)], [1e3] * 6, [True] * 6, [[0]] * 6, [*range(1, 7)], 1.0
    )
    assert [c.recomputed.tolist() for c in found(body)] == [
        [],
        [5],
        [4, 5],
        [3, 4, 5],
        [2, 3, 4, 5],
        [1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
    ]


@pytest.mark.parametrize("unit", [0.1, 1 / 3, 1e-7])
@pytest.mark.parametrize("price", [1e-12, 0.7, 1e6])
def test_rounding_makes_no_corners(unit, price):
    """Values of i bytes for i units of time: all of them, or none, at one price."""
    sizes = [*range(1, 200, 7)]
    count = len(sizes)
    body = Body(
        [0, *sizes],
        [-1, *range(count)],
        [unit * size for size in sizes],
        [True] * count,
        [[0]] * count,
        [*range(1, count + 1)],
        unit * price,
    )
    runs = [len(corner.recomputed) for corner in found(body)]
    assert runs == ([count] if price > 1 else [0, count])


def test_fewer_bytes_in_the_same_time_are_the_fastest():
    """Running again takes as long as keeping, up to the rounding of either."""
    sizes = [3, 7, 11]
    seconds = [size * 0.1 for size in sizes]
    body = Body([0, *sizes], [-1, 0, 1, 2], seconds, [True] * 3, [[0]] * 3, [1, 2, 3], 0.1)
    [corner] = found(body)
    assert corner.kept_bytes == 0


# Two equations, which make values 1, and 2 and 3.
VALID = Body(
    [8, 8, 4, 4], [-1, 0, 1, 1], [1.0, 2.0], [True, True], [[0], [0, 1]], [1, 3], 0.5
).arrays()


def test_the_arrays_of_the_error_tests_are_valid():
    _ext.retention_frontier(**VALID)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("value_bytes", [8, -1, 4, 4], "`value_bytes` must not be negative, got -1 for "
         "value 1"),
        ("value_bytes", [8, 2**61 - 8, 1, 0], "`value_bytes` must add up to at most "
         "2**61, but value 2 of 1 exceeds that"),
        ("value_bytes", [8, 2**63 - 1, 1, 0], "`value_bytes` must add up to at most "
         "2**61, but value 1 of 9223372036854775807 exceeds that"),
        ("value_maker", [-1, 0, 1], "`value_maker` must have one entry per value (4), "
         "got 3"),
        ("value_maker", [-1, 0, 2, 1], "`value_maker` must be in [0, 2), got 2"),
        ("value_maker", [-2, 0, 1, 1], "`value_maker` must be in [0, 2), got -2"),
        ("value_maker", [-1, 1, 0, 0], "equation 1 reads value 1, which equation 1 makes"),
        ("equation_seconds", [1.0, -1.0], "`equation_seconds` must not be negative and "
         "add up to at most 1e18, got -1 for equation 1"),
        ("equation_seconds", [1.0, np.nan], "got nan for equation 1"),
        ("equation_seconds", [np.inf, 1.0], "got inf for equation 0"),
        ("equation_seconds", [6e17, 6e17], "got 6e+17 for equation 1"),
        ("equation_may_run_again", [True], "`equation_may_run_again` must have one entry "
         "per equation (2), got 1"),
        ("operands_ptr", [0, 1], "`operands_ptr` must have one entry more than there are "
         "equations (3), got 2"),
        ("operands_ptr", [1, 1, 3], "`operands_ptr[0]` must be 0, got 1"),
        ("operands_ptr", [0, 4, 3], "`operands_ptr` must not decrease, but it does at "
         "equation 1: 4 then 3"),
        ("operands_ptr", [0, 1, 2], "`operands_ptr` must end with the length of "
         "`operands` (3), got 2"),
        ("operands", [0, 0, 4], "`operands` must be in [0, 4), got 4"),
        ("operands", [-1, 0, 1], "`operands` must be in [0, 4), got -1"),
        ("operands", [2, 0, 1], "equation 0 reads value 2, which equation 1 makes"),
        ("needed", [4], "`needed` must be in [0, 4), got 4"),
        ("needed", [-(2**63)], "`needed` must be in [0, 4), got -9223372036854775808"),
    ],
)  # fmt: skip
def test_refuses(name, value, message):
    arrays = VALID | {name: np.asarray(value, VALID[name].dtype)}
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        _ext.retention_frontier(**arrays)
    assert str(error.value).startswith("retention_frontier: ")


@pytest.mark.parametrize("price", [0.0, -1.0, 1e-31, 2e18, np.inf, np.nan])
def test_refuses_prices(price):
    message = re.escape("retention_frontier: `seconds_per_byte` must be in [1e-30, 1e18]")
    with pytest.raises(ValueError, match=message):
        _ext.retention_frontier(**VALID | {"seconds_per_byte": price})


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("value_bytes", np.zeros(4, np.int32), TypeError,
         "`value_bytes` must be an array of int64, got int32"),
        ("equation_seconds", np.zeros(2, np.float32), TypeError,
         "`equation_seconds` must be an array of float64, got float32"),
        ("equation_may_run_again", np.zeros(2, np.int64), TypeError,
         "`equation_may_run_again` must be an array of bool, got int64"),
        ("needed", np.zeros((1, 2), np.int64), ValueError,
         "`needed` must be one-dimensional, got shape (1, 2)"),
    ],
)  # fmt: skip
def test_refuses_arrays_of_another_type_or_shape(name, value, error, message):
    message = re.escape(f"retention_frontier: {message}")
    with pytest.raises(error, match=message):
        _ext.retention_frontier(**VALID | {name: value})
