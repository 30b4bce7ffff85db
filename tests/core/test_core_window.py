"""The window search against all contiguous windows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coop_jax import _ext

FREE, EVICTABLE, BARRIER = range(3)


def find_window(pieces, required):
    num_bytes, costs, kinds = zip(*pieces, strict=True) if pieces else ((), (), ())
    return _ext.find_window(
        np.asarray(num_bytes, np.int64),
        np.asarray(costs, np.float64),
        np.asarray(kinds, np.int64),
        required,
    )


def brute_force(pieces, required):
    """(cost, bytes, begin, end) of the best window, or None."""
    best = None
    for begin in range(len(pieces)):
        cost = total = 0
        for end, (num_bytes, piece_cost, kind) in enumerate(pieces[begin:], begin + 1):
            if kind == BARRIER:
                break
            total += num_bytes
            cost += piece_cost if kind == EVICTABLE else 0
            if total >= required:
                window = (cost, total, begin, end)
                best = window if best is None else min(best, window)
    return best


# Whole numbers: their sums are exact in any order.
costs = st.one_of(st.integers(0, 9).map(float), st.just(math.inf))
kinds = st.sampled_from([FREE, EVICTABLE, EVICTABLE, EVICTABLE, BARRIER])
piece_lists = st.lists(st.tuples(st.integers(1, 9), costs, kinds), max_size=30)


@given(pieces=piece_lists, required=st.integers(1, 30))
def test_agrees_with_brute_force(pieces, required):
    expected = brute_force(pieces, required)
    found = find_window(pieces, required)
    if expected is None:
        assert found is None
    else:
        cost, _, begin, end = expected
        assert found == (begin, end, cost)


@given(
    pieces=st.lists(
        st.tuples(st.integers(1, 9), st.floats(0, 1e12), st.just(EVICTABLE)),
        min_size=1,
        max_size=40,
    ),
    required=st.integers(1, 60),
)
def test_sums_do_not_drift(pieces, required):
    expected = brute_force(pieces, required)
    found = find_window(pieces, required)
    assert (found is None) == (expected is None)
    if expected is not None:
        assert found[2] == pytest.approx(expected[0], rel=1e-12)


def test_the_last_window_is_shrunk_too():
    # The authors' code records [0, 3) here and never drops the leading 100.
    pieces = [(1, 100.0, EVICTABLE), (1, 1.0, EVICTABLE), (2, 1.0, EVICTABLE)]
    assert find_window(pieces, 3) == (1, 3, 2.0)


def test_an_infinite_cost_leaves_no_trace():
    pieces = [(1, math.inf, EVICTABLE), (1, 1.0, EVICTABLE), (1, 2.0, EVICTABLE)]
    assert find_window(pieces, 2) == (1, 3, 3.0)


def test_equal_costs_prefer_few_bytes_then_a_low_address():
    pieces = [(3, 1.0, EVICTABLE), (2, 1.0, EVICTABLE), (2, 1.0, EVICTABLE)]
    assert find_window(pieces, 2) == (1, 2, 1.0)


def test_free_pieces_at_the_edges_are_used_but_not_wasted():
    pieces = [(4, 0.0, FREE), (4, 5.0, EVICTABLE), (4, 0.0, FREE)]
    assert find_window(pieces, 8) == (0, 2, 5.0)


def test_barriers_are_never_spanned():
    pieces = [(2, 1.0, EVICTABLE), (1, 0.0, BARRIER), (2, 1.0, EVICTABLE)]
    assert find_window(pieces, 3) is None
    assert find_window(pieces, 2) == (0, 1, 1.0)


@pytest.mark.parametrize(
    ("pieces", "required", "message"),
    [
        ([(1, 1.0, FREE)], 0, "find_window: `required` must be positive, got 0"),
        ([(1, 1.0, 3)], 1, "`piece_kind` must be 0 .* got 3"),
        ([(0, 1.0, FREE)], 1, "bytes must be positive and costs not negative, got 0"),
        ([(1, -1.0, FREE)], 1, "costs not negative, got 1 and -1"),
    ],
)
def test_refuses(pieces, required, message):
    with pytest.raises(ValueError, match=message):
        find_window(pieces, required)
