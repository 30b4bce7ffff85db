"""Faults: what goes wrong in an arena is said, with tensor, offset and boundary."""

import concurrent.futures
import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena.arena_steps import step_in_arena
from steps import assert_trees_equal, mlp_arguments, mlp_step

import coop_jax
from coop_jax.arena.exchange import Exchange, arena_aval, empty_arena, exchange_p
from coop_jax.arena.layout import Stay
from coop_jax.base.custom_calls import register_targets

ERROR = jax.errors.JaxRuntimeError

# Unoptimized code has other roundings of `tanh` by the loop that it is fused into.
pytestmark = pytest.mark.usefixtures("optimized_code")


def test_the_tampered_step_is_right_before_it_is_tampered_with():
    made = step_in_arena()
    assert len(made.plan.stays) >= 4
    assert_trees_equal(made.checked(), jax.jit(mlp_step)(*made.args))


@pytest.mark.parametrize("checked", [True, False])
def test_an_arena_that_is_too_small(checked):
    made = step_in_arena()
    top = max(made.plan.stays, key=lambda s: s.offset + s.num_bytes)
    small = dataclasses.replace(made.plan, arena_bytes=made.plan.arena_bytes - 64)
    with pytest.raises(
        ERROR,
        match=rf"store \d+ at offset {top.offset} of {top.num_bytes} bytes ends beyond "
        rf"the arena of {small.arena_bytes} bytes",
    ):
        made.checked(small) if checked else made.run(small)


def test_a_wrong_offset_where_something_lives():
    made = step_in_arena()
    first = made.plan.stays[0]
    number, other = next(
        (i, s)
        for i, s in enumerate(made.plan.stays)
        if first.stored_at < s.stored_at < first.loaded_at
    )
    with pytest.raises(
        ERROR,
        match=rf"at boundary {other.stored_at}, store of tensor {other.tensor} \(`.*` at "
        rf".*\) at \[{first.offset}, .*\): tensor {first.tensor} \(`.*` at .*\) lives at "
        rf"\[{first.offset}, {first.offset + first.num_bytes}\) since boundary "
        rf"{first.stored_at}",
    ):
        made.checked(made.moved(number, offset=first.offset))


def test_a_load_from_a_wrong_offset():
    """A value is stored in one place and sought in another."""
    made = step_in_arena()
    stay = made.plan.stays[0]

    class Elsewhere(type(made.plan)):
        def loaded_at(self, boundary):
            return [
                dataclasses.replace(s, offset=s.offset + 64) if s == stay else s
                for s in super().loaded_at(boundary)
            ]

    fields = {f.name: getattr(made.plan, f.name) for f in dataclasses.fields(made.plan)}
    fields["arena_bytes"] += 64
    with pytest.raises(
        ERROR,
        match=rf"at boundary {stay.loaded_at}, load of tensor {stay.tensor} \(.*\) at "
        rf"\[{stay.offset + 64}, .*\): tensor {stay.tensor} \(.*\) lives at "
        rf"\[{stay.offset}, ",
    ):
        made.checked(Elsewhere(**fields))


def test_a_load_of_what_is_not_there():
    """It left at its first load; a second finds nothing."""
    made = step_in_arena()
    stay = max(made.plan.stays, key=lambda s: s.loaded_at - s.stored_at)

    class Twice(type(made.plan)):
        def loaded_at(self, boundary):
            early = [stay] if boundary == stay.loaded_at - 1 else []
            return early + super().loaded_at(boundary)

    fields = {f.name: getattr(made.plan, f.name) for f in dataclasses.fields(made.plan)}
    with pytest.raises(
        ERROR,
        match=rf"at boundary {stay.loaded_at}, load of tensor {stay.tensor} \(.*\) at "
        rf"\[{stay.offset}, .*\): (nothing|tensor)",
    ):
        made.checked(Twice(**fields))


def test_a_value_that_nothing_brings_back():
    made = step_in_arena()
    stay = made.plan.stays[-1]

    class Forgetful(type(made.plan)):
        def stored_at(self, boundary):
            more = boundary == self.last_boundary
            lost = dataclasses.replace(stay, offset=self.arena_bytes - stay.num_bytes)
            return super().stored_at(boundary) + ([lost] if more else [])

    fields = {f.name: getattr(made.plan, f.name) for f in dataclasses.fields(made.plan)}
    fields["arena_bytes"] += stay.num_bytes
    with pytest.raises(ERROR, match=r"after the last boundary .* nothing brings it back"):
        made.checked(Forgetful(**fields))


STAY = Stay(tensor=5, num_bytes=256, stored_at=1, loaded_at=2, offset=128)
VALUE = jnp.arange(64, dtype=jnp.float32)


def exchange(arena, stores=(), loads=(), values=(), loaded=(), exchange_log=77, **flags):
    what = Exchange(
        boundary=2 if loads else 1,
        stores=tuple(stores),
        loads=tuple(loads),
        is_first=flags.get("is_first", False),
        is_last=flags.get("is_last", False),
        exchange_log=exchange_log,
        names=tuple(f"value {s.tensor}" for s in (*stores, *loads)),
    )
    return exchange_p.bind(arena, *values, what=what, loaded=tuple(loaded))


def stored_and(change, *, keep=False):
    """Store a value, change the arena unseen by the exchange log, bring the value back."""

    @jax.jit
    def step(x):
        arena = empty_arena(arena_aval(1024))
        [first] = exchange(arena, [STAY], values=[x], is_first=True)
        _, loaded = exchange(
            change(first, x), loads=[STAY], loaded=[jax.typeof(x)], is_last=True
        )
        return (loaded, first[:4]) if keep else loaded

    return jax.block_until_ready(step(VALUE))


def test_an_exchange_by_itself():
    loaded = stored_and(lambda arena, x: arena)
    np.testing.assert_array_equal(loaded, VALUE)


def test_an_arena_that_somebody_wrote_to():
    """Without checked mode, and over what lives there."""
    other = dataclasses.replace(STAY, num_bytes=4, offset=132)

    def write(arena, x):
        [arena] = exchange(arena, [other], values=[x[:1] + 3], exchange_log=None)
        return arena

    with pytest.raises(
        ERROR,
        match=r"at boundary 2, load of tensor 5 \(value 5\) at \[128, 384\): its bytes are "
        r"not those that were stored at boundary 1: something else wrote there",
    ):
        stored_and(write)


def test_an_arena_that_xla_copied():
    """It has to keep the first one for what reads that afterwards."""
    with pytest.raises(ERROR, match="at boundary 2 this is not the arena of the boundary"):
        stored_and(lambda arena, x: arena, keep=True)


def test_an_arena_that_is_not_aliased():
    register_targets()
    what = Exchange(1, (), (), is_first=True, is_last=True, exchange_log=77)

    @jax.jit
    def step(arena):
        shapes = [jax.ShapeDtypeStruct(arena.shape, arena.dtype)]
        call = jax.ffi.ffi_call("coop_checked_exchange", shapes)
        return call(arena, **what.attributes(0))

    with pytest.raises(ERROR, match="at boundary 1 the arena is copied, not aliased"):
        jax.block_until_ready(step(jnp.zeros(64, jnp.uint8)))


def test_without_checked_mode_a_copied_arena_gives_the_same_results():
    made = step_in_arena()
    program = made.compiled()
    kept = program._make()
    before = np.asarray(kept)  # The caller's view of it: it can't be overwritten.
    arena, results = program.compiled(kept, *made.args)
    del arena
    assert_trees_equal(results, jax.jit(mlp_step)(*made.args))
    del before


def arena_step(fn=mlp_step, **options):
    return coop_jax.remat_train_step(
        fn, budget="60%", placement="arena", planner="lookahead", **options
    )


@pytest.mark.usefixtures("copies_cost_nothing")
@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_threads_that_call_the_same_step(debug):
    weights, x = mlp_arguments()
    step = arena_step(arena_debug=debug)
    inputs = [x * (1 + k) for k in range(4)]
    want = [jax.jit(mlp_step)(weights, x) for x in inputs]
    assert step.plan(weights, x).arena.stays
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: step(weights, x), inputs * 3))
    for results, wanted in zip(got, want * 3, strict=True):
        assert_trees_equal(results, wanted)


@pytest.mark.usefixtures("copies_cost_nothing")
@pytest.mark.slow
@pytest.mark.parametrize("debug", [False, True])
def test_a_step_that_fails_half_way(debug):
    """Its arena is lost; the next call makes another."""
    fails = False

    def check(x):
        if fails:
            raise RuntimeError("the loss is not finite")
        return x

    def step(weights, x):
        new_weights, value = mlp_step(weights, x)
        shape = jax.ShapeDtypeStruct(value.shape, value.dtype)
        value = jax.pure_callback(check, shape, value)
        return jax.tree.map(lambda w: w + 0 * value, new_weights), value

    weights, x = mlp_arguments()
    planned = arena_step(step, arena_debug=debug)
    want = jax.jit(step)(weights, x)
    assert planned.plan(weights, x).arena.stays
    assert_trees_equal(planned(weights, x), want)
    fails = True
    with pytest.raises(Exception, match="the loss is not finite"):
        jax.block_until_ready(planned(weights, x))
    fails = False
    assert_trees_equal(planned(weights, x), want)


def test_a_step_that_fails_after_its_call_returned():
    """The arena comes back with an error in it: not for the next call."""
    made = step_in_arena()
    compiled = made.compiled()
    num_bytes = made.plan.arena_bytes
    nothing = dataclasses.replace(STAY, num_bytes=4, offset=0)

    @functools.partial(jax.jit, donate_argnums=0)
    def fail(arena, m):
        for _ in range(20):
            m = m @ m * 1e-3
        [arena] = exchange(arena, [STAY], values=[jnp.full(64, m[0, 0])], is_first=True)
        arena, _ = exchange(
            arena, loads=[nothing], loaded=[jax.typeof(m[0, 0])], is_last=True
        )
        return arena

    arena = jnp.zeros(num_bytes, jnp.uint8)
    try:
        arena = fail.lower(arena, jnp.ones((1024, 1024))).compile()(
            arena, jnp.ones((1024, 1024))
        )
    except ERROR:
        pytest.skip("XLA ran it before the call returned")
    while not arena.is_ready():
        time.sleep(0.01)
    compiled._idle.append(arena)
    assert_trees_equal(compiled(*made.args), jax.jit(mlp_step)(*made.args))
    with pytest.raises(ERROR, match="nothing lives there"):
        arena.block_until_ready()
