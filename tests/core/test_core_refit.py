"""Blocks that have a place already, against the packing's checker and known optima."""

import numpy as np
import pytest
from core.test_core_packing import check, optimum, pack
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import tilings

from coop_jax import _ext

ALIGNMENT = 4


def refit(blocks, wished, capacity, alignment=ALIGNMENT, **options):
    columns = np.asarray(blocks, np.int64).reshape(-1, 3).T
    wished = np.asarray(wished, np.int64)
    return _ext.refit(
        *np.ascontiguousarray(columns), wished, capacity, alignment=alignment, **options
    )


def random_blocks(random, most=7):
    first = random.integers(0, 8, random.integers(1, most + 1))
    last = first + random.integers(0, 5, len(first))
    return list(zip(first, last, random.integers(0, 40, len(first)), strict=True))


@st.composite
def problems(draw):
    blocks = [
        (first, first + draw(st.integers(0, 8)), draw(st.integers(0, 60)))
        for first in draw(st.lists(st.integers(0, 12), max_size=25))
    ]
    place = st.integers(-1, 40).map(lambda k: k if k < 0 else ALIGNMENT * k)
    wished = [draw(place) for _ in blocks]
    return blocks, wished, draw(st.integers(0, 400)), draw(st.integers(0, 3))


@settings(max_examples=200, deadline=None)
@given(problems())
def test_whatever_is_wished_the_packing_is_valid(problem):
    blocks, wished, capacity, seed = problem
    packing = refit(blocks, wished, capacity, effort=20_000, seed=seed)
    if packing is None:
        return
    check(blocks, packing, ALIGNMENT)
    assert packing.peak_bytes <= capacity


@pytest.mark.parametrize("seed", range(40))
def test_the_least_capacity_is_found_and_none_below(seed):
    random = np.random.default_rng(seed)
    blocks = random_blocks(random)
    rounded = [(f, t, -(-b // ALIGNMENT) * ALIGNMENT) for f, t, b in blocks]
    least = round(optimum(rounded))
    wished = ALIGNMENT * random.integers(0, 12, len(blocks))
    packing = refit(blocks, wished, least)
    assert packing is not None
    check(blocks, packing, ALIGNMENT)
    assert packing.peak_bytes == least
    if least:
        assert refit(blocks, wished, least - 1, effort=50_000) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_packing_that_fits_stays_as_it_is(seed):
    blocks = tilings.cut(60, seed, waste=0.1)
    packing = pack(blocks, alignment=1, effort=100_000)
    again = refit(blocks, packing.offsets, packing.peak_bytes, alignment=1)
    np.testing.assert_array_equal(again.offsets, packing.offsets)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_without_a_place_go_between_the_others(seed):
    blocks = tilings.cut(60, seed, waste=0.1)
    packing = pack(blocks, alignment=1)
    wished = packing.offsets.copy()
    wished[np.random.default_rng(seed).choice(60, 6, replace=False)] = -1
    again = refit(blocks, wished, packing.peak_bytes, alignment=1)
    assert again is not None
    check(blocks, again, 1)
    assert again.peak_bytes <= packing.peak_bytes
    # Most stay.
    assert np.mean(again.offsets == packing.offsets) > 0.7


def test_illegal_wishes_are_refused():
    blocks = [(0, 1, 8), (0, 2, 8)]
    with pytest.raises(ValueError, match=r"refit.*`wished`.*one entry.*2.*got 1"):
        refit(blocks, [0], 64)
    with pytest.raises(ValueError, match=r"`wished` must hold multiples of.*got 2"):
        refit(blocks, [0, 2], 64)
    with pytest.raises(ValueError, match=r"refit.*alignment.*3"):
        refit(blocks, [0, 8], 64, alignment=3)
