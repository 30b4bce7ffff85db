"""The online arena: a state machine with patterns, and whole schedules replayed."""

import gc
import weakref

import numpy as np
import pytest
from core.programs import COMPUTE, EVICT, FREE, Op, Program
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coop_jax import ArenaExhausted, OnlineArena, _ext

CAPACITY = 4096
ALIGNMENT = 64


def pattern(tag, num_bytes, inputs=()):
    """A value that depends on everything it is made from."""
    seed = [tag, *(int(value.astype(np.int64).sum()) for value in inputs)]
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)


def maker(tag):
    def recompute(value, *inputs):
        value[:] = pattern(tag, len(value), inputs)

    return recompute


class ArenaMachine(RuleBasedStateMachine):
    """Every value that is resident is right, whatever was evicted in between."""

    def __init__(self):
        super().__init__()
        self.arena = OnlineArena(CAPACITY, alignment=ALIGNMENT, cheap_density=0.01)
        self.values: dict[int, np.ndarray] = {}  # What the program may touch.
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
    def books_are_right(self):
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


@st.composite
def straight_programs(draw):
    """One output per operation; externals come first. Returns it with its externals."""
    num_externals, num_ops = draw(st.integers(1, 2)), draw(st.integers(1, 25))
    ops, sizes = [], [64] * num_externals
    for k in range(num_ops):
        inputs = draw(
            st.lists(
                st.integers(max(0, len(sizes) - 6), len(sizes) - 1), min_size=1, max_size=3
            )
        )
        seconds = draw(st.sampled_from([0.0, 1.0, 1.0, 5.0]))
        ops.append(Op(sorted(set(inputs)), [num_externals + k], seconds))
        sizes.append(draw(st.sampled_from([64, 100, 256, 1000])))
    externals = set(range(num_externals))
    return Program(ops, sizes, external=externals, output={len(sizes) - 1})


def values_of(program):
    """What every tensor holds; an external is known to whoever needs it."""
    values = [pattern(t, program.tensor_bytes[t]) for t in sorted(program.external)]
    for op in program.ops:
        [made] = op.outputs
        inputs = [values[t] for t in op.inputs]
        values.append(pattern(made, program.tensor_bytes[made], inputs))
    return values


def recompute_of(program, values, op):
    """From the inputs in the arena, and the externals, which are not in it."""
    [made] = op.outputs

    def recompute(value, *inputs):
        inside = iter(inputs)
        read = [values[t] if t in program.external else next(inside) for t in op.inputs]
        value[:] = pattern(made, len(value), read)

    return recompute


@given(straight_programs(), st.integers(0, 3))
def test_replays_a_schedule_address_by_address(program, tightness):
    """With the planner's evictions the arena puts everything where the planner does."""
    graph = program.graph()
    options = _ext.PlanOptions(
        policy="coop", recomputable_in_place=False, density_threshold=0.01
    )
    smallest = _ext.minimum_pool(graph, options).capacity
    largest = _ext.unconstrained(graph, options).statistics.peak_bytes
    capacity = smallest + (largest - smallest) * tightness // 3
    schedule = _ext.plan(graph, capacity, options)
    # A greedy planner may fail with more where it does not with less.
    assume(isinstance(schedule, _ext.Schedule))
    arena = OnlineArena(schedule.capacity, cheap_density=0.01)
    values = values_of(program)
    handles: dict[int, int] = {}
    planned = {(s, t): o for s, t, o, _ in schedule.placements.tolist()}
    for step, (kind, index) in enumerate(schedule.steps.tolist()):
        if kind == EVICT:
            arena.evict(handles[index])
        elif kind == FREE:
            # Recomputed for others after its last use, it is gone again already.
            if arena.is_resident(handles[index]):
                arena.evict(handles[index])
        else:
            op = program.ops[index]
            [made] = op.outputs
            if kind == COMPUTE:
                handles[made] = arena.allocate(
                    program.tensor_bytes[made],
                    seconds=op.seconds,
                    inputs=[handles[t] for t in op.inputs if t not in program.external],
                    recompute=recompute_of(program, values, op),
                )
                assert arena.offset(handles[made]) == planned[step, made]
                arena.touch(handles[made])[:] = values[made]
            np.testing.assert_array_equal(arena.touch(handles[made]), values[made])
            assert arena.offset(handles[made]) == planned[step, made]
    forced = schedule.statistics.recomputations
    assert arena.recomputations == forced
    assert arena.recomputed_seconds == schedule.statistics.recompute_seconds
    assert arena.peak_bytes == schedule.statistics.peak_bytes


@given(straight_programs())
def test_runs_a_program_it_does_not_know(program):
    """In the smallest pool the planner needs, and a little more for what it can't see."""
    graph = program.graph()
    options = _ext.PlanOptions(policy="coop", recomputable_in_place=False)
    smallest = _ext.minimum_pool(graph, options).capacity
    arena = OnlineArena(2 * smallest)
    values = values_of(program)
    last_use = graph.last_use
    handles: dict[int, int] = {}
    for k, op in enumerate(program.ops):
        inside = [handles[t] for t in op.inputs if t not in program.external]
        [made] = op.outputs
        handles[made] = arena.allocate(
            program.tensor_bytes[made],
            seconds=op.seconds,
            inputs=inside,
            recompute=recompute_of(program, values, op),
        )
        recompute_of(program, values, op)(
            arena.pin(handles[made]), *(values_in(arena, inside))
        )
        arena.unpin(handles[made])
        for t in [t for t in handles if last_use[t] == k]:
            arena.release(handles.pop(t))
    for t, handle in handles.items():
        np.testing.assert_array_equal(arena.touch(handle), values[t])
        arena.release(handle)
    assert arena.free_bytes == arena.capacity


def values_in(arena, tensors):
    return [arena.touch(tensor).copy() for tensor in tensors]


def test_evicts_the_cheapest_neighbours():
    """The window, not the single cheapest tensor: there is room for 256 afterwards."""
    arena = OnlineArena(512)
    seconds = [9.0, 1.0, 1.0, 9.0]
    tensors = [
        arena.allocate(128, seconds=s, recompute=maker(k)) for k, s in enumerate(seconds)
    ]
    arena.allocate(256, seconds=1.0, recompute=maker(9))
    assert [arena.is_resident(t) for t in tensors] == [True, False, False, True]
    assert arena.evictions == 2


def test_cheap_tensors_lie_at_the_other_end():
    arena = OnlineArena(1024, cheap_density=0.01)
    dear = arena.allocate(64, seconds=1.0, recompute=maker(0))
    cheap = arena.allocate(64, seconds=0.1, recompute=maker(1))
    assert arena.offset(dear) == 0
    assert arena.offset(cheap) == 1024 - 64


def test_in_place_the_old_value_is_recomputed_when_touched():
    arena = OnlineArena(1024)
    old = arena.allocate(64, seconds=1.0, recompute=maker(0))
    arena.touch(old)[:] = pattern(0, 64)
    new = arena.allocate(64, inputs=[old], take_over=old, recompute=maker(1))
    assert arena.offset(new) == 0
    assert not arena.is_resident(old)
    np.testing.assert_array_equal(arena.touch(old), pattern(0, 64))
    assert arena.recomputations == 1


def test_a_chain_is_recomputed_without_recursion():
    length = 50_000
    arena = OnlineArena(256)
    tensor = arena.allocate(64, seconds=1.0, recompute=lambda value: value.fill(0))
    arena.touch(tensor)[:] = 0

    def add_one(value, before):
        value[:] = before + np.uint8(1)

    chain = [tensor]
    for _ in range(length):
        chain.append(arena.allocate(64, seconds=1.0, inputs=[chain[-1]], recompute=add_one))
        arena.touch(chain[-1])[:] = arena.touch(chain[-2])[:] + np.uint8(1)
    for tensor in chain[1:]:
        if arena.is_resident(tensor):
            arena.evict(tensor)
    assert arena.touch(chain[-1])[0] == length % 256


def test_an_error_in_a_recomputation_leaves_the_arena_as_it_was():
    arena = OnlineArena(1024)
    is_broken = True

    def recompute(value):
        if is_broken:
            raise RuntimeError("out of luck")
        value[:] = 7

    tensor = arena.allocate(64, seconds=1.0, recompute=recompute)
    other = arena.allocate(64, inputs=[tensor], seconds=1.0, recompute=maker(1))
    arena.evict(tensor)
    arena.evict(other)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of luck"):
            arena.touch(other)
        arena.check_invariants()
        assert arena.free_bytes == 1024
    is_broken = False
    np.testing.assert_array_equal(
        arena.touch(other), pattern(1, 64, [np.full(64, 7, np.uint8)])
    )


def test_a_recomputation_must_not_use_the_arena():
    arena = OnlineArena(1024)
    first = arena.allocate(64)
    second = arena.allocate(64, seconds=1.0, recompute=lambda value: arena.touch(first))
    arena.evict(second)
    with pytest.raises(ValueError, match="while a tensor is recomputed"):
        arena.touch(second)
    arena.check_invariants()


def test_a_recomputation_that_refers_to_its_arena_is_collected():
    class Owner:
        pass

    owner = Owner()
    owner.arena = OnlineArena(1024)
    owner.arena.allocate(64, recompute=lambda value, owner=owner: owner.arena)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_views_keep_the_arena_alive():
    arena = OnlineArena(1024)
    memory = arena.pin(arena.allocate(64))
    memory[:] = 5
    del arena
    gc.collect()
    assert (memory == 5).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: a.allocate(0), "`bytes` must be positive, got 0"),
        (lambda a: a.allocate(8, seconds=-1.0), "`seconds` must not be negative"),
        (lambda a: a.allocate(8, inputs=[99]), "an input: tensor 99 is not in use"),
        (lambda a: a.touch(-1), "tensor -1 is not in use"),
        (lambda a: a.unpin(0), "tensor 0 is not pinned"),
        (lambda a: a.evict(0), "tensor 0 can't be recomputed"),
        (lambda a: (a.pin(0), a.release(0)), "tensor 0 is pinned; unpin it first"),
        (lambda a: a.allocate(64, take_over=0), "`take_over` must be one of the inputs"),
        (
            lambda a: a.allocate(128, inputs=[0], take_over=0),
            "of the same size and not pinned, got tensor 0 of 64 bytes for 128",
        ),
        (
            lambda a: a.allocate(64, inputs=[0], take_over=0, recompute=maker(1)),
            "`take_over` must be a tensor that can be recomputed",
        ),
        (
            lambda a: (a.allocate(64, inputs=[0], take_over=0), a.touch(0)),
            "tensor 0 was overwritten in place",
        ),
        (lambda a: OnlineArena(64, alignment=3), "`alignment` must be a power of two"),
        (lambda a: OnlineArena(-1), "`capacity` must not be negative, got -1"),
    ],
)
def test_what_is_refused(call, text):
    arena = OnlineArena(1024)
    arena.allocate(64)
    with pytest.raises(ValueError, match=text):
        call(arena)
    arena.check_invariants()


def test_exhaustion_says_why():
    arena = OnlineArena(1024)
    arena.allocate(512)
    with pytest.raises(
        ArenaExhausted, match="1024 bytes has no room for 1000: 512 bytes are pinned"
    ):
        arena.allocate(1000)
    with pytest.raises(MemoryError, match="has no room for 9223372036854775807"):
        arena.allocate(2**63 - 1)
    arena.check_invariants()
    assert repr(arena) == "OnlineArena(1024 bytes, 512 free, 0 evictions, 0 recomputations)"
