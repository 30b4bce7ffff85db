"""Pool: a state machine against a list of blocks."""

import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coop_jax import _ext

CAPACITY = 4096
ALIGNMENT = 64


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = _ext.Pool(CAPACITY + 13, ALIGNMENT)  # Rounded down.
        self.blocks: dict[int, int] = {}  # Offset to rounded bytes.
        self.pattern = np.zeros(CAPACITY, np.int64)
        self.next_tag = 1

    def holes(self) -> list[tuple[int, int]]:
        """(bytes, offset) of the maximal free ranges, from the blocks alone."""
        edges = [(0, 0), *sorted(self.blocks.items()), (CAPACITY, 0)]
        gaps = []
        for (a, a_bytes), (b, _) in itertools.pairwise(edges):
            if b > a + a_bytes:
                gaps.append((b - a - a_bytes, a + a_bytes))
        return gaps

    @rule(num_bytes=st.integers(1, 1500), side=st.sampled_from(["left", "right"]))
    def allocate(self, num_bytes, side):
        rounded = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        fitting = [hole for hole in self.holes() if hole[0] >= rounded]
        offset = self.pool.allocate(num_bytes, side)
        if not fitting:
            assert offset is None
            return
        hole_bytes, hole = min(fitting)  # Best fit, lowest address.
        assert offset == (hole if side == "left" else hole + hole_bytes - rounded)
        self.blocks[offset] = rounded
        assert not self.pattern[offset : offset + rounded].any()
        self.pattern[offset : offset + rounded] = self.next_tag
        self.next_tag += 1

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def release(self, data):
        offset = data.draw(st.sampled_from(sorted(self.blocks)))
        block = self.pattern[offset : offset + self.blocks.pop(offset)]
        assert len(set(block.tolist())) == 1
        block[:] = 0
        self.pool.release(offset)

    @invariant()
    def invariants_hold(self):
        self.pool.check_invariants()
        used = {offset: size for offset, size, free in self.pool.pieces() if not free}
        assert used == self.blocks
        free = [(size, offset) for offset, size, free in self.pool.pieces() if free]
        assert free == self.holes()
        assert self.pool.free_bytes == CAPACITY - sum(self.blocks.values())
        assert self.pool.largest_free_bytes == max(free, default=(0, 0))[0]


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, deadline=None)


def test_merges_with_both_neighbours_at_once():
    pool = _ext.Pool(256)
    a, b, c = (pool.allocate(64) for _ in range(3))
    pool.release(a)
    pool.release(c)
    assert pool.pieces() == [(0, 64, True), (64, 64, False), (128, 128, True)]
    pool.release(b)
    assert pool.pieces() == [(0, 256, True)]


def test_peak_is_the_highest_end_address():
    pool = _ext.Pool(1024)
    pool.release(pool.allocate(128))
    assert pool.peak_bytes == 128
    pool.allocate(1, "right")
    assert pool.peak_bytes == 1024


def test_an_empty_pool_holds_nothing():
    pool = _ext.Pool(63)
    assert pool.pieces() == []
    assert pool.allocate(1) is None
    pool.check_invariants()


def test_refuses():
    with pytest.raises(ValueError, match="Pool: `alignment` must be a power of two, got"):
        _ext.Pool(64, 48)
    with pytest.raises(ValueError, match="Pool: `capacity` must not be negative, got -1"):
        _ext.Pool(-1)
    pool = _ext.Pool(64)
    with pytest.raises(ValueError, match="`bytes` must be positive, got 0"):
        pool.allocate(0)
    with pytest.raises(ValueError, match="must be 'left' or 'right', got 'up'"):
        pool.allocate(1, "up")
    with pytest.raises(ValueError, match="start of a block in use, got 7"):
        pool.release(7)
