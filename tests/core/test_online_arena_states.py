"""The online arena as a state machine: every resident value is right, at every step."""

import numpy as np
import pytest
from core.patterns import maker, pattern
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coop_jax import ArenaExhausted, OnlineArena

CAPACITY = 4096
ALIGNMENT = 64


class ArenaMachine(RuleBasedStateMachine):
    """Every value that is resident is right, whatever was evicted in between."""

    def __init__(self):
        super().__init__()
        self.arena = OnlineArena(CAPACITY, alignment=ALIGNMENT, cheap_density=0.01)
        self.values: dict[int, np.ndarray] = {}  # Those that the program may touch.
        self.dead: set[int] = set()  # Overwritten in place, still to be released.
        self.pinned: dict[int, list[np.ndarray]] = {}
        self.has_recompute: dict[int, bool] = {}
        self.made = 0

    def draw_tensor(self, data, tensors=None):
        return data.draw(st.sampled_from(sorted(tensors or self.values)))

    @rule(
        data=st.data(),
        num_bytes=st.sampled_from([1, 64, 100, 256, 700, 1000]),
        seconds=st.sampled_from([0.0, 0.5, 1.0, 8.0]),
        num_inputs=st.integers(0, 2),
        is_recomputable=st.sampled_from([True, True, True, False]),
    )
    def allocate(self, data, num_bytes, seconds, num_inputs, is_recomputable):
        inputs = []
        if self.values:
            inputs = [self.draw_tensor(data) for _ in range(num_inputs)]
        tag = self.made
        self.made += 1
        value = pattern(tag, num_bytes, [self.values[i] for i in inputs])
        try:
            tensor = self.arena.allocate(
                num_bytes,
                seconds=seconds,
                inputs=inputs,
                recompute=maker(tag) if is_recomputable else None,
            )
        except ArenaExhausted:
            return
        self.arena.touch(tensor)[:] = value
        self.values[tensor] = value
        self.has_recompute[tensor] = is_recomputable

    @precondition(lambda self: self.values)
    @rule(data=st.data(), is_recomputable=st.booleans())
    def allocate_in_place(self, data, is_recomputable):
        old = self.draw_tensor(data)
        tag = self.made
        self.made += 1
        before = self.values[old]
        value = pattern(tag, len(before), [before])
        try:
            tensor = self.arena.allocate(
                len(before),
                seconds=1.0,
                inputs=[old],
                recompute=maker(tag) if is_recomputable else None,
                take_over=old,
            )
        except ValueError:
            assert old in self.pinned or not self.has_recompute[old]
            return
        except ArenaExhausted:
            return
        memory = self.arena.touch(tensor)
        np.testing.assert_array_equal(memory, before)
        memory[:] = value
        self.values[tensor] = value
        self.has_recompute[tensor] = is_recomputable
        if not self.has_recompute[old]:
            del self.values[old]
            self.dead.add(old)

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def touch(self, data):
        tensor = self.draw_tensor(data)
        try:
            memory = self.arena.touch(tensor)
        except ArenaExhausted:
            return
        np.testing.assert_array_equal(memory, self.values[tensor])

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def pin(self, data):
        tensor = self.draw_tensor(data)
        try:
            memory = self.arena.pin(tensor)
        except ArenaExhausted:
            return
        self.pinned.setdefault(tensor, []).append(memory)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        tensor = self.draw_tensor(data, self.pinned)
        self.arena.unpin(tensor)
        self.pinned[tensor].pop()
        if not self.pinned[tensor]:
            del self.pinned[tensor]

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def evict(self, data):
        tensor = self.draw_tensor(data)
        was_resident = self.arena.is_resident(tensor)
        try:
            self.arena.evict(tensor)
        except ValueError:
            assert tensor in self.pinned or not self.has_recompute[tensor]
            assert was_resident

    @precondition(lambda self: self.values.keys() - self.pinned.keys())
    @rule(data=st.data())
    def release(self, data):
        tensor = self.draw_tensor(data, self.values.keys() - self.pinned.keys())
        self.arena.release(tensor)
        del self.values[tensor]
        with pytest.raises(ValueError, match=f"tensor {tensor} is not in use"):
            self.arena.touch(tensor)

    @precondition(lambda self: self.dead)
    @rule()
    def release_what_was_overwritten(self):
        self.arena.release(self.dead.pop())

    @invariant()
    def invariants_hold(self):
        self.arena.check_invariants()

    @invariant()
    def every_resident_value_is_right(self):
        memory = self.arena.memory
        assert len(memory) == CAPACITY
        covered = np.zeros(CAPACITY, bool)
        for tensor, value in self.values.items():
            offset = self.arena.offset(tensor)
            if offset is None:
                assert self.has_recompute[tensor]
                assert tensor not in self.pinned
                continue
            assert offset % ALIGNMENT == 0
            here = slice(offset, offset + len(value))
            assert not covered[here].any()
            covered[here] = True
            np.testing.assert_array_equal(memory[here], value)

    @invariant()
    def pinned_values_stay_where_they_are(self):
        for tensor, views in self.pinned.items():
            for view in views:
                np.testing.assert_array_equal(view, self.values[tensor])

    def teardown(self):
        """Released to the last, nothing is left."""
        for tensor, views in self.pinned.items():
            for _ in views:
                self.arena.unpin(tensor)
        for tensor in [*self.values, *self.dead]:
            self.arena.release(tensor)
        self.arena.check_invariants()
        assert self.arena.free_bytes == self.arena.largest_free_bytes == CAPACITY


TestArenaMachine = ArenaMachine.TestCase
# 10,000 steps.
TestArenaMachine.settings = settings(max_examples=100, stateful_step_count=100)
