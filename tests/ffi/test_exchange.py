"""The custom call `coop_exchange`: what it moves, where, and what it refuses."""

import concurrent.futures
import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from ffi.exchanges import TARGET, bytes_of, exchange, expected

DTYPES = [np.bool_, np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.int32]
DTYPES += [np.float32, np.complex64, ml_dtypes.float8_e4m3fn]
MIB = 1 << 20
F32 = np.float32


def filled(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def value(shape, dtype, seed):
    if dtype == np.bool_:
        return filled(int(np.prod(shape)), seed).reshape(shape) > 127
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return filled(size, seed).view(dtype).reshape(shape)


def assert_same_bytes(got, want):
    np.testing.assert_array_equal(bytes_of(got), bytes_of(want))


def check(exchanger, arena, passed, stores, **kwargs):
    moves = {k: kwargs[k] for k in ("store_at", "load_at", "loads")}
    want_arena, want_loaded = expected(arena, stores, **moves)
    got_arena, got_passed, got_loaded = exchanger.run(arena, passed, stores, **kwargs)
    assert_same_bytes(got_arena, want_arena)
    for got, want in zip(got_passed, passed, strict=True):
        assert_same_bytes(got, want)
    for got, want in zip(got_loaded, want_loaded, strict=True):
        assert_same_bytes(got, want)


@st.composite
def exchanges(draw):
    """Disjoint stores and any loads, at any offset, of any type and size."""
    types = st.sampled_from(DTYPES)
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    stores, store_at, end = [], [], 0
    for seed in range(draw(st.integers(0, 5))):
        stores.append(value(draw(shapes), draw(types), seed))
        store_at.append(end + draw(st.sampled_from([0, 0, 1, 4, 16, 61])))
        end = store_at[-1] + stores[-1].nbytes
    arena_bytes = end + draw(st.integers(0, 200))
    order = draw(st.permutations(range(len(stores))))
    loads, load_at = [], []
    for _ in range(draw(st.integers(0, 5))):
        shape, dtype = draw(shapes), draw(types.filter(lambda t: t != np.bool_))
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if size <= arena_bytes:
            loads.append((shape, dtype))
            load_at.append(draw(st.integers(0, arena_bytes - size)))
    passed = [value(draw(shapes), draw(types), 9) for _ in range(draw(st.integers(0, 2)))]
    return {
        "arena": filled(arena_bytes, 7),
        "passed": passed,
        "stores": [stores[i] for i in order],
        "store_at": [store_at[i] for i in order],
        "load_at": load_at,
        "loads": loads,
        "aliased": draw(st.booleans()),
    }


@hypothesis.given(exchanges())
def test_any_exchange_moves_exactly_its_bytes(exchanger, case):
    check(exchanger, **case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (64, 33)])
def test_round_trip(exchanger, dtype, shape):
    x = value(shape, dtype, 1)

    def there_and_back(arena, x):
        arena, _, _ = exchange(arena, [], [x], store_at=[48])
        _, _, [y] = exchange(arena, load_at=[48], loads=[(x.shape, x.dtype)])
        return y

    y = jax.jit(there_and_back)(*exchanger.put(np.zeros(1 << 15, np.uint8), x))
    assert y.dtype == x.dtype
    assert_same_bytes(y, x)


@pytest.mark.parametrize("aliased", [True, False])
def test_loads_come_before_stores(exchanger, aliased):
    """A store takes the block of the tensor that the same exchange brings back."""
    check(
        exchanger,
        filled(64),
        [],
        [np.arange(4, dtype=np.float32), np.arange(8, dtype=np.int16)],
        store_at=[8, 32],
        load_at=[16, 0],
        loads=[((8,), np.float32), ((16,), np.int8)],
        aliased=aliased,
    )


@pytest.mark.parametrize("aliased", [True, False])
@pytest.mark.parametrize("shift", [0, 4, 1])
def test_large_values_in_pieces(exchanger, aliased, shift):
    """Several threads and blocks, and ends that fit no piece, vector or word."""
    sizes = [3 * MIB + 5, 17, MIB, 700_001]
    store_at = np.cumsum([shift, *sizes[:-1]]).tolist()
    check(
        exchanger,
        filled(8 * MIB),
        [filled(2 * MIB + 3, 1)],
        [filled(size, i + 2) for i, size in enumerate(sizes)],
        store_at=store_at,
        load_at=[2 * MIB + shift, 5 * MIB + shift],
        loads=[((3 * MIB + 3,), np.uint8), ((2 * MIB // 4,), np.float32)],
        aliased=aliased,
    )


def test_many_small_values(exchanger):
    """More than one kernel launch takes."""
    count = 300
    check(
        exchanger,
        filled(64 * count),
        [],
        [value((i % 16,), np.float32, i) for i in range(count)],
        store_at=[64 * i for i in range(count)],
        load_at=[64 * i for i in range(count)],
        loads=[((i % 13,), np.float32) for i in range(count)],
    )


def test_an_empty_exchange_and_an_empty_arena(exchanger):
    none = {"store_at": [], "load_at": [], "loads": []}
    check(exchanger, filled(32), [], [], **none)
    check(exchanger, filled(0), [np.float32(3)], [], **none)
    check(
        exchanger,
        filled(0),
        [],
        [np.zeros((0, 2), np.float32)],
        store_at=[0],
        load_at=[0],
        loads=[((3, 0), np.int32)],
    )


def test_stores_a_value_that_also_passes(exchanger):
    x = np.arange(6, dtype=np.float32)
    step = jax.jit(lambda arena, x: exchange(arena, [x], [x], store_at=[4]))
    arena, [passed], _ = step(*exchanger.put(filled(64), x))
    assert_same_bytes(passed, x)
    assert_same_bytes(np.asarray(arena)[4:28], x)


def chain(arena, x, *, length):
    """Swaps a value with the one in its block, again and again."""
    for _ in range(length):
        arena, _, [y] = exchange(
            arena, [], [x + 1], store_at=[256], load_at=[256], loads=[(x.shape, x.dtype)]
        )
        x = x * y
    return arena, x


def test_a_donated_arena_is_never_copied(exchanger):
    arena, x = exchanger.put(jnp.zeros(MIB, np.uint8), np.ones(1024, F32))
    step = jax.jit(functools.partial(chain, length=6), donate_argnums=0)
    compiled = step.lower(arena, x).compile()
    assert compiled.as_text().count(f'custom_call_target="{TARGET}"') == 6
    assert " copy(" not in compiled.as_text()
    assert "copy-start" not in compiled.as_text()
    assert compiled.memory_analysis().alias_size_in_bytes == MIB
    assert compiled.memory_analysis().temp_size_in_bytes < MIB // 4
    address = arena.unsafe_buffer_pointer()
    arena, _ = compiled(arena, x)
    assert arena.unsafe_buffer_pointer() == address


def test_a_kept_arena_is_not_overwritten(exchanger):
    arena, x = exchanger.put(np.zeros(4096, np.uint8), np.ones(8, np.float32))
    changed, _ = jax.jit(functools.partial(chain, length=2))(arena, x)
    assert np.asarray(changed).any()
    assert not np.asarray(arena).any()


def test_runs_again_and_again(exchanger):
    """On a GPU the later runs may replay a graph, without a call of the handler."""
    step = jax.jit(functools.partial(chain, length=6), donate_argnums=0)
    arena, x = exchanger.put(jnp.zeros(256 + 64, np.uint8), np.full(16, 0.5, F32))
    block, want = F32(0), F32(0.5)
    for _ in range(8):
        arena, x = step(arena, x)
        x = x / 8
        for _ in range(6):
            block, want = want + 1, want * block
        want = want / 8
        np.testing.assert_allclose(np.asarray(x), want, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(arena[256:]).view(F32), block, rtol=1e-6)


def test_passes_values_smaller_than_a_byte(exchanger):
    x = np.arange(8).astype(ml_dtypes.int4)
    step = jax.jit(lambda arena, x: exchange(arena, [x + x])[1])
    [y] = step(*exchanger.put(filled(16), x))
    np.testing.assert_array_equal(np.asarray(y), x + x)


def test_in_a_loop(exchanger):
    def body(arena, x):
        arena, _, [y] = exchange(
            arena, [], [x], store_at=[16], load_at=[16], loads=[((4,), np.float32)]
        )
        return arena, y

    xs = np.arange(28, dtype=np.float32).reshape(7, 4)
    _, ys = jax.jit(lambda a, xs: jax.lax.scan(body, a, xs))(
        *exchanger.put(np.zeros(64, np.uint8), xs)
    )
    np.testing.assert_array_equal(ys, np.vstack([np.zeros(4, np.float32), xs[:-1]]))


@pytest.mark.parametrize("size", [64, 4 * MIB])
def test_calls_from_many_threads(exchanger, size):
    """One executable, an arena each; large ones share XLA's threads."""
    step = jax.jit(functools.partial(chain, length=4), donate_argnums=0)

    def run(seed):
        x = np.full(size // 4, seed, np.float32)
        arena, x = step(*exchanger.put(np.zeros(256 + size, np.uint8), x))
        return np.asarray(arena[256:]).view(np.float32), np.asarray(x)

    def simulated(x):
        block = np.float32(0)
        for _ in range(4):
            block, x = x + 1, x * block
        return block, x

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, range(24)))
    for seed, (block, x) in enumerate(results):
        want_block, want_x = simulated(np.float32(seed))
        assert (block == want_block).all()
        assert (x == want_x).all()


ONE = np.zeros(4, F32)  # 16 bytes.
FAULTS = {
    "coop_exchange: load 1 at offset 56 of 16 bytes ends beyond the arena of 64 bytes": {
        "load_at": [0, 56],
        "loads": [((4,), F32), ((4,), F32)],
    },
    "coop_exchange: load 0 at offset 0 of 68 bytes ends beyond the arena of 64 bytes": {
        "load_at": [0],
        "loads": [((17,), F32)],
    },
    "coop_exchange: load 0 at offset 9223372036854775807 of 16 bytes ends beyond the "
    "arena of 64 bytes": {"load_at": [2**63 - 1], "loads": [((4,), F32)]},
    "coop_exchange: load 0 at offset -1 of 16 bytes begins before the arena": {
        "load_at": [-1],
        "loads": [((4,), F32)],
    },
    "coop_exchange: load 0 at offset 65 of 0 bytes ends beyond the arena of 64 bytes": {
        "load_at": [65],
        "loads": [((0,), F32)],
    },
    "coop_exchange: store 0 at offset 49 of 16 bytes ends beyond the arena of 64 bytes": {
        "stores": [ONE],
        "store_at": [49],
    },
    "coop_exchange: store 1 at offset -16 of 16 bytes begins before the arena": {
        "stores": [ONE, ONE],
        "store_at": [0, -16],
    },
    "coop_exchange: store 0 at offset 20 of 16 bytes overlaps store 2 at offset 8 of "
    "16 bytes": {"stores": [ONE, ONE, ONE], "store_at": [20, 40, 8]},
    "coop_exchange: expected 2 operands, an arena, 0 to pass through and 1 to store, "
    "got 3": {"stores": [ONE, ONE], "store_at": [0]},
    "coop_exchange: expected 3 operands, an arena, 0 to pass through and 2 to store, "
    "got 2": {"stores": [ONE], "store_at": [0, 16]},
    "coop_exchange: expected 3 results, an arena, 1 to pass through and 1 to load, got 2": {
        "passed": [ONE],
        "load_at": [0],
    },
    "coop_exchange: expected 2 results, an arena, 1 to pass through and 0 to load, got 3": {
        "passed": [ONE],
        "loads": [((4,), F32)],
    },
    "coop_exchange: num_pass_through must not be negative, got -1": {
        "num_pass_through": -1
    },
    "coop_exchange: the arena has 64 bytes as operand and 60 bytes as result": {
        "shapes": [jax.ShapeDtypeStruct((60,), np.uint8)],
        "aliased": False,
    },
    "coop_exchange: pass-through value 0 has 16 bytes as operand and 12 bytes as result": {
        "passed": [ONE],
        "shapes": [
            jax.ShapeDtypeStruct((64,), np.uint8),
            jax.ShapeDtypeStruct((3,), F32),
        ],
        "aliased": False,
    },
    "coop_exchange: operand 1 has elements smaller than a byte": {
        "stores": [np.zeros(8, ml_dtypes.int4)],
        "store_at": [0],
    },
    "coop_exchange: result 1 has elements smaller than a byte, which is not": {
        "passed": [np.zeros(8, ml_dtypes.int4)],
        "aliased": False,
    },
    "coop_exchange: result 1 has elements smaller than a byte": {
        "loads": [((8,), jnp.int4)],
        "load_at": [0],
    },
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: text[15:45])
def test_refuses(exchanger, text):
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(text)):
        exchanger.run(np.zeros(64, np.uint8), **FAULTS[text])


@pytest.mark.parametrize(
    "arena", [np.zeros(64, np.int8), np.zeros((8, 8), np.uint8), np.zeros((), np.uint8)]
)
def test_refuses_an_arena_that_is_not_bytes(exchanger, arena):
    text = "coop_exchange: the arena must be bytes in one dimension, u8[n]"
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(text)):
        exchanger.run(arena)


def test_a_fault_leaves_other_calls_alone(exchanger):
    with pytest.raises(jax.errors.JaxRuntimeError, match="ends beyond"):
        exchanger.run(np.zeros(4, np.uint8), [], [ONE], store_at=[0])
    check(exchanger, filled(64), [], [ONE], store_at=[16], load_at=[], loads=[])
