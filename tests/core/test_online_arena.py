"""The online arena, one rule after the other."""

import gc
import weakref

import numpy as np
import pytest
from core.patterns import maker, pattern

from coop_jax import ArenaExhausted, OnlineArena


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
            raise RuntimeError("no such file")
        value[:] = 7

    tensor = arena.allocate(64, seconds=1.0, recompute=recompute)
    other = arena.allocate(64, inputs=[tensor], seconds=1.0, recompute=maker(1))
    arena.evict(tensor)
    arena.evict(other)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such file"):
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
        (
            lambda a: a.allocate(8, seconds=-1.0),
            r"`seconds` must be in \[0, 1e18\]",
        ),
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
        (
            lambda a: OnlineArena(64, cheap_density=float("nan")),
            "`cheap_density` must not be negative, got nan",
        ),
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
