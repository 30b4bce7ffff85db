"""Static packing against a slow checker, an integer program and known optima."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from coop_jax import _ext


def pack(blocks, **options):
    """Blocks are (first, last, bytes)."""
    columns = np.asarray(blocks, np.int64).reshape(-1, 3).T
    return _ext.pack(*np.ascontiguousarray(columns), **options)


def check(blocks, packing, alignment, fixed=None):
    """Every pair and every step, written without a look at the packer."""
    offsets = packing.offsets.tolist()
    assert len(offsets) == len(blocks)
    rounded = [-(-b // alignment) * alignment for _, _, b in blocks]
    ends = [o + b for o, b in zip(offsets, rounded, strict=True)]
    assert all(o >= 0 and o % alignment == 0 for o in offsets)
    assert packing.peak_bytes == max(ends, default=0)
    steps = {first for first, _, _ in blocks}
    live = [
        sum(r for (f, t, _), r in zip(blocks, rounded, strict=True) if f <= s <= t)
        for s in steps
    ]
    fixed = {} if fixed is None else fixed
    bound = max(live + [fixed[i] + rounded[i] for i in fixed], default=0)
    assert packing.lower_bound_bytes == bound <= packing.peak_bytes
    assert all(offsets[i] == offset for i, offset in fixed.items())
    for i, j in itertools.combinations(range(len(blocks)), 2):
        if blocks[i][0] <= blocks[j][1] and blocks[j][0] <= blocks[i][1]:
            apart = ends[i] <= offsets[j] or ends[j] <= offsets[i]
            assert apart or 0 in (rounded[i], rounded[j]), (i, j)


def optimum(blocks):
    """The least peak, by an integer program: one binary per pair that meets."""
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(blocks)), 2)
        if blocks[i][0] <= blocks[j][1] and blocks[j][0] <= blocks[i][1]
    ]
    n, big = len(blocks), sum(b for _, _, b in blocks)
    size = n + 1 + len(pairs)  # Offsets, the peak, the binaries.
    rows, lower = [], []

    def at_least(bound, **terms):
        rows.append(np.zeros(size))
        for column, factor in terms.items():
            rows[-1][int(column[1:])] = factor
        lower.append(bound)

    for i, (_, _, b) in enumerate(blocks):
        at_least(b, **{f"_{n}": 1, f"_{i}": -1})
    for k, (i, j) in enumerate(pairs):
        below = f"_{n + 1 + k}"  # 1: i lies below j.
        at_least(blocks[i][2] - big, **{f"_{j}": 1, f"_{i}": -1, below: -big})
        at_least(blocks[j][2], **{f"_{i}": 1, f"_{j}": -1, below: big})
    objective = np.eye(size)[n]
    upper = np.r_[np.full(n + 1, big), np.ones(len(pairs))]
    result = milp(
        objective,
        constraints=LinearConstraint(np.array(rows), lower, np.inf),
        integrality=np.r_[np.zeros(n + 1), np.ones(len(pairs))],
        bounds=Bounds(0, upper),
        options={"presolve": False},  # Its presolve fails on some of these.
    )
    assert result.success, result.message
    return round(result.fun)


def tiling(rng, num_blocks, width, height):
    """A rectangle cut recursively: its height is the least peak, with no waste."""
    parts = [(0, width, 0, height)]
    while len(parts) < num_blocks:
        areas = [(r - le) * (t - b) for le, r, b, t in parts]
        le, r, b, t = parts.pop(int(np.argmax(areas)))
        wheel = min(r - le, t - b) >= 3 and rng.random() < 0.3
        if wheel:  # Five parts that no straight cut separates.
            x0, x1 = np.sort(rng.choice(np.arange(le + 1, r), 2, False)).tolist()
            y0, y1 = np.sort(rng.choice(np.arange(b + 1, t), 2, False)).tolist()
            parts += [(le, x1, b, y0), (x1, r, b, y1), (x0, r, y1, t)]
            parts += [(le, x0, y0, t), (x0, x1, y0, y1)]
        elif r - le >= 2 and (rng.random() < 0.5 or t - b < 2):
            x = int(rng.integers(le + 1, r))
            parts += [(le, x, b, t), (x, r, b, t)]
        else:
            y = int(rng.integers(b + 1, t))
            parts += [(le, r, b, y), (le, r, y, t)]
    rng.shuffle(parts)
    return [(le, r - 1, t - b) for le, r, b, t in parts]


def step_like(rng, num_ops):
    """Saved activations, temporaries and gradients, as in a training step."""
    blocks = []
    for op in range(num_ops // 2):
        kind = rng.random()
        if kind < 0.5:
            last = num_ops - 1 - op
        elif kind < 0.8:
            last = op + int(rng.integers(1, 5))
        else:
            last = op + int(rng.integers(1, num_ops // 20 + 2))
        blocks.append((op, last, int(rng.integers(1, 1280)) * 1024))
        first = num_ops // 2 + op
        blocks.append((first, first + int(rng.integers(1, 6)), 64 * 1024))
    return blocks


block_lists = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(0, 6), st.integers(0, 300)).map(
        lambda b: (b[0], b[0] + b[1], b[2])
    ),
    max_size=25,
)


@given(
    blocks=block_lists,
    alignment=st.sampled_from([1, 64, 256]),
    effort=st.sampled_from([0, 10_000, 1_000_000]),
    seed=st.integers(0, 3),
    seconds=st.sampled_from([None, 1e6]),
)
def test_blocks_never_meet(blocks, alignment, effort, seed, seconds):
    packing = pack(blocks, alignment=alignment, effort=effort, seed=seed, seconds=seconds)
    check(blocks, packing, alignment)


@settings(max_examples=60, deadline=None)
@given(
    blocks=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(1, 9)).map(
            lambda b: (b[0], b[0] + b[1], b[2])
        ),
        min_size=1,
        max_size=8,
    )
)
def test_small_packings_are_optimal(blocks):
    packing = pack(blocks, alignment=1)
    check(blocks, packing, 1)
    assert packing.peak_bytes == optimum(blocks)


@pytest.mark.parametrize("seed", range(6))
def test_tilings_of_100_blocks_leave_no_waste(seed):
    blocks = tiling(np.random.default_rng(seed), 100, 100, 1000)
    greedy = pack(blocks, alignment=1, effort=0)
    packing = pack(blocks, alignment=1, effort=1_000_000_000)
    check(blocks, packing, 1)
    assert greedy.peak_bytes > 1100  # Hard enough to tell something.
    assert packing.peak_bytes == packing.lower_bound_bytes == 1000


def test_same_seed_same_packing():
    blocks = tiling(np.random.default_rng(7), 200, 50, 1000)
    first = pack(blocks, alignment=1, effort=20_000_000, seed=3)
    again = pack(blocks, alignment=1, effort=20_000_000, seed=3)
    assert first.offsets.tolist() == again.offsets.tolist()


def test_stops_at_the_target():
    blocks = tiling(np.random.default_rng(1), 300, 50, 1000)
    start = time.process_time()
    packing = pack(blocks, alignment=1, effort=10**15, target_peak_bytes=2000)
    assert time.process_time() - start < 1
    assert packing.peak_bytes <= 2000


@given(data=st.data())
def test_fixed_blocks_stay(data):
    blocks = data.draw(block_lists.filter(lambda blocks: len(blocks) > 0))
    apart = pack(blocks, effort=0).offsets.tolist()
    chosen = data.draw(st.sets(st.sampled_from(range(len(blocks)))))
    shift = data.draw(st.sampled_from([0, 64, 640]))
    fixed = {i: apart[i] + shift for i in chosen}
    offsets = np.array([fixed.get(i, -1) for i in range(len(blocks))], np.int64)
    packing = pack(blocks, fixed_offsets=offsets, effort=100_000)
    check(blocks, packing, 64, {i: o for i, o in fixed.items() if blocks[i][2] > 0})


def test_uses_the_room_below_a_fixed_block():
    fixed = np.array([128, -1], np.int64)
    packing = pack([(0, 1, 64), (1, 2, 128)], fixed_offsets=fixed)
    assert packing.offsets.tolist() == [128, 0]


def test_nothing_to_pack():
    packing = pack([])
    assert packing.offsets.tolist() == []
    assert packing.peak_bytes == packing.lower_bound_bytes == 0
    assert pack([(0, 0, 0)]).offsets.tolist() == [0]


@pytest.mark.parametrize(("num_ops", "limit_seconds"), [(2_000, 4), (20_000, 8)])
def test_training_steps_come_close_to_the_bound(num_ops, limit_seconds):
    blocks = step_like(np.random.default_rng(0), num_ops)
    start = time.process_time()
    packing = pack(blocks)
    assert time.process_time() - start < limit_seconds
    assert packing.peak_bytes <= 1.01 * packing.lower_bound_bytes


@pytest.mark.parametrize(
    ("blocks", "options", "message"),
    [
        ([(0, 1, -1)], {}, r"pack\(...\): `bytes` must not be negative, but block 0 "),
        ([(2, 1, 1)], {}, "`last` must not be before `first`, but block 0 lives from 2"),
        ([(0, 1, 2**62)], {}, "`bytes` must add up to at most .* check its unit"),
        ([(0, 1, 1)], {"alignment": 48}, "`alignment` must be a power of two, got 48"),
        (
            [(0, 1, 1)],
            {"fixed_offsets": np.array([7])},
            "`fixed_offsets` must be multiples of the alignment .* block 0 has 7",
        ),
        (
            [(0, 1, 1), (1, 1, 1)],
            {"fixed_offsets": np.array([0, 0])},
            "blocks 0 and 1 at 0 and 0 .* overlap; move one of them or use -1",
        ),
        (
            [(0, 1, 1)],
            {"fixed_offsets": np.array([0, 0])},
            r"`fixed_offsets` must have one entry per block \(1, .* got 2",
        ),
    ],
)
def test_refuses(blocks, options, message):
    with pytest.raises(ValueError, match=message):
        pack(blocks, **options)
