"""Steps with an arena: same losses, the planned addresses, one allocation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arena.arena_steps import step_in_arena
from models import convnet_problem, mixer_problem, transformer_problem
from steps import (
    LITTLE_CODE,
    QUICK,
    assert_trees_equal,
    mlp_arguments,
    mlp_step,
    names_and_types,
)

import coop_jax
from coop_jax import _ext
from coop_jax.arena.stats import new_exchange_log, planned_stats, recorded_stats
from coop_jax.xla.memory_figures import memory_figures

PROBLEMS = {
    "transformer": lambda dtype: transformer_problem(
        num_layers=2, width=32, num_heads=2, sequence_length=64, dtype=dtype
    ),
    "convnet": lambda dtype: convnet_problem(
        stage_sizes=(2, 2, 2), width=8, image_size=16, batch_size=32, dtype=dtype
    ),
    "mixer": lambda dtype: mixer_problem(
        num_layers=2, width=32, batch_size=16, dtype=dtype
    ),
}
STEPS = 20

pytestmark = pytest.mark.usefixtures("copies_cost_nothing")
# Unoptimized code has other roundings of `tanh` by the loop that it is fused into.
ALL_BITS = pytest.mark.usefixtures("optimized_code")


def arena_step(fn, budget="80%", planner="lookahead", **options):
    # Where values lie is what is tested, not which: the fast planner.
    return coop_jax.remat_train_step(
        fn, budget=budget, placement="arena", planner=planner, **options
    )


def losses(step, problem):
    state, found = problem.fresh_state(), []
    for k in range(STEPS):
        state, loss = step(state, problem.batch, jax.random.fold_in(problem.key, k))
        found.append(float(loss))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), names_and_types(PROBLEMS, in_full=None))
def test_twenty_losses_are_the_same(name, dtype):
    """As of the step as written, and of the same budget without an arena."""
    problem = PROBLEMS[name](jnp.dtype(dtype))
    # The plan of the fast planner for that one has nothing that is worth an arena.
    planner = QUICK if name == "mixer" else "lookahead"
    options = {"donate_argnums": 0, "compiler_options": LITTLE_CODE}
    in_arena = arena_step(problem.train_step, planner=planner, arena_debug=True, **options)
    by_xla = coop_jax.remat_train_step(
        problem.train_step, budget="80%", planner=planner, **options
    )
    as_written = jax.jit(problem.train_step, **options)
    plan = in_arena.plan(problem.state, problem.batch, problem.key)
    assert plan.measured_bytes <= plan.budget_bytes
    assert plan.arena.stays
    want = losses(as_written, problem)
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(losses(in_arena, problem), want, rtol=tolerance)
    np.testing.assert_allclose(losses(by_xla, problem), want, rtol=tolerance)
    stats = in_arena.arena_stats()
    np.testing.assert_array_equal(stats.events, planned_stats(plan.arena).events)


def test_the_address_map_is_the_plan_tensor_by_tensor():
    made = step_in_arena()
    exchange_log = new_exchange_log()
    made.run(exchange_log=exchange_log)
    stats = recorded_stats(made.plan, exchange_log)
    planned = [
        (s.tensor, s.stored_at, s.loaded_at, s.offset, s.num_bytes) for s in made.plan.stays
    ]
    assert len(planned) >= 4
    assert sorted(map(tuple, stats.address_map().tolist())) == sorted(planned)
    assert stats.moved_bytes == made.plan.copied_bytes
    assert stats.high_water_bytes == made.plan.arena_bytes
    _ext.remove_arena_books(exchange_log)
    assert recorded_stats(made.plan, exchange_log) is None


def test_no_two_stays_share_bytes():
    """By brute force, boundary by boundary."""
    for percent in (45, 50, 60, 75):
        plan = step_in_arena(percent).plan
        for boundary in range(plan.last_boundary):
            here = [s for s in plan.stays if s.stored_at <= boundary < s.loaded_at]
            ends = 0
            for stay in sorted(here, key=lambda s: s.offset):
                assert stay.offset >= ends
                ends = stay.offset + stay.num_bytes
            assert ends <= plan.arena_bytes


def test_occupancy_and_fragmentation_by_brute_force():
    stats = planned_stats(step_in_arena().plan)
    taken = np.zeros(stats.arena_bytes, bool)
    rows = iter(zip(stats.occupancy().tolist(), stats.fragmentation(), strict=True))
    boundaries = dict.fromkeys(stats.events[:, 0].tolist())
    for boundary in boundaries:
        for _, kind, _, offset, size in stats.events[stats.events[:, 0] == boundary]:
            assert taken[offset : offset + size].all() == (kind == 1)
            taken[offset : offset + size] = kind == 0
        edges = np.flatnonzero(np.diff(np.concatenate([[True], taken, [True]])))
        largest = max(np.diff(edges)[::2], default=0)
        (where, used, free, largest_free), fragmentation = next(rows)
        assert (where, used, free) == (boundary, taken.sum(), (~taken).sum())
        assert largest_free == largest
        assert fragmentation == pytest.approx(1 - largest / free if free else 0)


def test_the_picture_of_a_run_is_that_of_its_plan(tmp_path):
    made = step_in_arena()
    exchange_log = new_exchange_log()
    made.run(exchange_log=exchange_log)
    recorded_stats(made.plan, exchange_log).plot(tmp_path / "run.png")
    planned_stats(made.plan).plot(tmp_path / "plan.png")
    assert (tmp_path / "run.png").read_bytes() == (tmp_path / "plan.png").read_bytes()


@pytest.mark.slow
def test_it_prints():
    weights, x = mlp_arguments()
    step = arena_step(mlp_step, arena_debug=True)
    text = str(step.plan(weights, x))
    assert "\n  arena " in text
    assert "stays, copies" in text
    step(weights, x)
    assert str(step.arena_stats()).startswith("arena of ")


@ALL_BITS
def test_the_arena_is_allocated_once_and_carried():
    weights, x = mlp_arguments()
    step = arena_step(mlp_step)
    assert step.plan(weights, x).arena.stays
    step(weights, x)
    [fitted] = step._direct._fitted.values()
    [arena] = fitted.compiled._idle
    address = arena.unsafe_buffer_pointer()
    for _ in range(3):
        step(weights, x)
        [arena] = fitted.compiled._idle
        assert arena.unsafe_buffer_pointer() == address
    step.release_arenas()
    assert arena.is_deleted()
    assert_trees_equal(step(weights, x), jax.jit(mlp_step)(weights, x))


@ALL_BITS
def test_what_is_lowered_has_the_arguments_of_the_step():
    weights, x = mlp_arguments()
    step = arena_step(mlp_step, donate_argnums=0)
    plan = step.plan(weights, x)
    lowered = step.lower(weights, x)
    assert "coop_empty_arena" in lowered.as_text()
    compiled = lowered.compile()
    assert memory_figures(compiled).total_bytes <= 1.02 * plan.measured_bytes
    want = jax.jit(mlp_step)(weights, x)
    assert_trees_equal(compiled(weights, x), want)


def test_under_an_outer_jit_xla_places():
    weights, x = mlp_arguments()
    step = arena_step(mlp_step, "90%")
    text = jax.jit(lambda w, x: step(w, x)).lower(weights, x).as_text()
    assert "coop_fence" in text
    assert "coop_exchange" not in text


@ALL_BITS
def test_static_and_named_arguments():
    weights, x = mlp_arguments()

    def step(weights, x, *, scale, power: int = 1):
        new, value = mlp_step(weights, x * scale)
        return new, value**power

    planned = arena_step(
        step,
        planner=QUICK,  # With the other one nothing is worth an arena.
        static_argnames="power",
        donate_argnames="weights",
        arena_debug=True,
    )
    want = jax.jit(step, static_argnames="power")(weights, x, scale=2.0, power=2)
    got = planned(jax.tree.map(jnp.copy, weights), x, scale=2.0, power=2)
    assert_trees_equal(got, want)
    assert len(planned.arena_stats().events)


@pytest.mark.slow
@ALL_BITS
def test_names_hold_for_arguments_by_position():
    """As for `jax.jit`, which finds their positions in the signature."""
    weights, x = mlp_arguments()

    def step(weights, x, power):
        new, value = mlp_step(weights, x)
        return new, value if power == 1 else value**power

    planned = arena_step(step, static_argnames="power", donate_argnames=("weights",))
    want = jax.jit(step, static_argnames="power")(weights, x, 2)
    given = jax.tree.map(jnp.copy, weights)
    assert_trees_equal(planned(given, x, 2), want)
    assert planned.plan(weights, x, 2).arena.stays
    assert all(w.is_deleted() for w in given)
    assert not x.is_deleted()
    by_number = arena_step(step, static_argnums=-1, donate_argnums=0)
    assert_trees_equal(by_number(jax.tree.map(jnp.copy, weights), x, 2), want)


def test_a_step_that_fits_as_written_has_no_arena():
    weights, x = mlp_arguments()
    step = arena_step(mlp_step, "100%", arena_debug=True)
    plan = step.plan(weights, x)
    assert plan.is_unmodified
    assert plan.arena is None
    step(weights, x)
    assert len(step.arena_stats().events) == 0


@pytest.mark.slow
def test_the_environment_variable_turns_checked_mode_on(monkeypatch):
    weights, x = mlp_arguments()
    monkeypatch.setenv("COOP_JAX_ARENA_DEBUG", "1")
    step = arena_step(mlp_step)
    monkeypatch.setenv("COOP_JAX_ARENA_DEBUG", "0")
    step(weights, x)
    assert len(step.arena_stats().events)
    with pytest.raises(RuntimeError, match=r"`arena_stats\(\)` needs the exchange log"):
        arena_step(mlp_step).arena_stats()


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"must be one of xla, arena. Got 'pool'"):
        coop_jax.remat_train_step(mlp_step, budget="60%", placement="pool")
    with pytest.raises(ValueError, match=r'arena_debug=True.* needs `placement="arena"`'):
        coop_jax.remat_train_step(mlp_step, budget="60%", arena_debug=True)
    with pytest.raises(RuntimeError, match="Call the step first"):
        arena_step(mlp_step, arena_debug=True).arena_stats()


def test_steps_over_several_devices_are_refused():
    devices = jax.devices()
    if len(devices) < 2:
        pytest.skip("needs two devices")
    mesh = jax.sharding.Mesh(np.array(devices[:2]), ("data",))
    weights, x = mlp_arguments()
    x = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.P("data")))
    with pytest.raises(ValueError, match=r'placement="arena".* one device.* Got .* over 2'):
        arena_step(mlp_step)(weights, x)
