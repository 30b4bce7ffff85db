"""`planning.pack`: packings whose optimum is known, and arguments."""

import numpy as np
import pytest
from oracles import tilings

from coop_jax import _ext, planning


@pytest.mark.parametrize("num_blocks", [100, 200, 500])
@pytest.mark.parametrize("seed", range(4))
def test_a_rectangle_without_waste_is_put_together_again(num_blocks, seed):
    blocks = tilings.cut(num_blocks, seed, waste=0.0)
    packed = planning.pack(blocks, seconds=60)
    assert packed.peak_bytes == packed.lower_bound_bytes == tilings.HEIGHT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_blocks", "waste"),
    [(100, 0.0), (100, 0.01), (200, 0.0), (200, 0.01), (500, 0.0), (500, 0.01)],
)
def test_thirty_of_each(num_blocks, waste):
    ratios = []
    for seed in range(30):
        blocks = tilings.cut(num_blocks, seed, waste)
        packed = _packed(blocks, tilings.HEIGHT, effort=10**10)
        ratios.append(packed.peak_bytes / tilings.HEIGHT)
    assert max(ratios) <= 1.01
    assert np.mean(np.array(ratios) <= 1) >= 0.9


def _packed(blocks, target_peak_bytes, **options):
    columns = np.ascontiguousarray(np.array(blocks, np.int64).T)
    return _ext.pack(
        *columns, alignment=1, target_peak_bytes=target_peak_bytes, seconds=1e6, **options
    )


@pytest.mark.parametrize("seed", range(100, 106))
def test_blocks_are_composed_within_what_sections_can_waste(seed):
    blocks = tilings.cut(500, seed, waste=0.01)
    packed = _packed(blocks, tilings.HEIGHT, effort=10**9)
    assert packed.peak_bytes <= tilings.HEIGHT


@pytest.mark.parametrize(
    ("num_blocks", "seed", "waste"), [(500, 5, 0.1), (500, 1022, 0.01)]
)
def test_no_part_waits_for_another(num_blocks, seed, waste):
    hard, easy = tilings.cut(num_blocks, seed, waste), tilings.cut(200, 3, 0.01)
    after = max(last for _, last, _ in hard) + 1
    blocks = hard + [(after + first, after + last, size) for first, last, size in easy]
    alone = [_packed(part, 0, effort=10**8).peak_bytes for part in (hard, easy)]
    assert _packed(easy, 0, effort=0).peak_bytes > 1.2 * max(alone)
    assert _packed(blocks, 0, effort=2 * 10**8).peak_bytes <= 1.01 * max(alone)


@pytest.mark.parametrize("waste", [0.0, 0.01, 0.1])
def test_more_effort_is_never_worse(waste):
    for num_blocks, seed in ((40, 0), (90, 1), (150, 2)):
        blocks = tilings.cut(num_blocks, seed, waste)
        peaks = [
            _packed(blocks, 0, effort=effort).peak_bytes
            for effort in (0, 10_000, 100_000, 10**6, 10**7)
        ]
        assert peaks == sorted(peaks, reverse=True)


def test_a_larger_target_is_met_where_a_smaller_one_is():
    for waste in (0.0, 0.05, 0.2):
        blocks = tilings.cut(120, 3, waste)
        best = _packed(blocks, 0, effort=10**7).peak_bytes
        for percent in (100, 101, 103, 110):
            target = best * percent // 100
            assert _packed(blocks, target, effort=10**7).peak_bytes <= target


def test_capacity_is_enough_or_refused():
    blocks = tilings.cut(50, 0, waste=0.0)
    loose = planning.pack(blocks, capacity=2 * tilings.HEIGHT)
    assert loose.peak_bytes <= 2 * tilings.HEIGHT
    with pytest.raises(
        planning.InfeasiblePoolError, match="none needs less than"
    ) as raised:
        planning.pack(blocks, capacity=tilings.HEIGHT - 1, seconds=0.2)
    assert raised.value.failure is None


def test_blocks_may_have_a_fixed_place_and_an_alignment():
    blocks = [planning.Block(0, 1, 5, offset=8), (1, 2, 5), (2, 3, 7), (0, 3, 0)]
    packed = planning.pack(blocks, alignment=4)
    assert packed.offsets[0] == 8
    assert all(offset % 4 == 0 for offset in packed.offsets)
    assert packed.peak_bytes == packed.lower_bound_bytes == 16


def test_no_blocks_need_nothing():
    assert planning.pack([]) == planning.Packed((), 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0}, r"`planning\.pack\(seconds=\.\.\.\)` must be positive\. Got 0"),
        ({"seconds": float("nan")}, r"must be finite and not negative\. Got nan"),
        ({"capacity": -1}, r"`planning\.pack\(capacity=\.\.\.\)` must be in .* Got -1"),
        ({"alignment": 3}, "`alignment` must be a power of two, got 3"),
        ({"blocks": [(2, 1, 1)]}, "`last` must not be before `first`"),
        ({"blocks": [(0, 1, -1)]}, r"`bytes` of `planning\.pack\(blocks=\.\.\.\)\[0\]`"),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        planning.pack(**{"blocks": [(0, 1, 1)], **arguments})


@pytest.mark.parametrize("block", [(0, 1), (0, 1, 2, 3), 7, (0, 1, 1.5), (0, True, 1)])
def test_blocks_of_another_type_are_refused(block):
    with pytest.raises(TypeError, match=r"planning\.pack\(blocks=\.\.\.\)"):
        planning.pack([block])
