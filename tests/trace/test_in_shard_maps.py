"""Equations of `shard_map`s are planned one by one, and run under `shard_map`s again."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax import lax
from shard_map_steps import (
    COUNT,
    DIVIDED,
    LOOPS,
    STEPS,
    WHOLE,
    a_map_for_each_layer,
    a_map_in_a_loop,
    loss_inside,
    maps_in_branches,
    mesh_of,
    placed,
    ring,
)
from steps import traced

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.graph.stored_values import tag
from coop_jax.trace.in_shard_maps import has_shards
from coop_jax.trace.shards import to_shards_p, to_whole_p
from coop_jax.xla.memory_figures import memory_figures

# To plan.
LONGEST = (loss_inside, a_map_for_each_layer, maps_in_branches, a_map_in_a_loop)

pytestmark = pytest.mark.skipif(len(jax.devices()) < COUNT, reason="needs four devices")


def as_it_is(fn):
    return fn


def keeping_nothing(fn):
    return jax.checkpoint(fn, policy=jax.checkpoint_policies.nothing_saveable)


def same_bits(some, others):
    for one, other in zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)


@pytest.mark.parametrize("make", STEPS)
def test_the_program_is_the_step(make):
    step, args = make(as_it_is)
    step = traced(step, *args)
    assert has_shards(step.program)
    assert "shard_map" not in [eqn.primitive.name for eqn in step.program.eqns]
    as_written = step.compile_lowered(step.lower_as_written())
    rewritten = step.compile(tag(step.program))
    same_bits(as_written(*args), rewritten(*args))
    assert collectives(rewritten) == collectives(as_written)
    before, after = (memory_figures(c).total_bytes for c in (as_written, rewritten))
    assert after <= 1.01 * before


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=pytest.mark.hand if make in LONGEST else [])
        for make in STEPS + LOOPS
    ],
)
def test_budgets_near_a_checkpoint_are_kept(make):
    step, args = make(as_it_is)
    plain = jax.jit(step)
    figures = [
        memory_figures(jax.jit(fn).lower(*args).compile()).total_bytes
        for fn in (step, make(keeping_nothing)[0])
    ]
    # Of steps that are so small a single value is some percent.
    budget = int(min(1.06 * min(figures), 0.9 * figures[0]))
    planned = remat_train_step(step, budget=budget)
    assert planned.plan(*args).measured_bytes <= budget
    assert memory_figures(planned.lower(*args).compile()).total_bytes <= budget
    ours = theirs = args
    for _ in range(3):
        (state, value), (expected, expected_value) = planned(*ours), plain(*theirs)
        np.testing.assert_allclose(value, expected_value, rtol=1e-5)
        ours, theirs = (state, args[1]), (expected, args[1])
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [ring, a_map_in_a_loop, pytest.param(maps_in_branches, marks=pytest.mark.hand)]
)
def test_a_mesh_of_one_device(make):
    step, args = make(as_it_is, count=1)
    needed = memory_figures(jax.jit(step).lower(*args).compile()).total_bytes
    planned = remat_train_step(step, budget="70%")
    assert planned.plan(*args).measured_bytes <= 0.7 * needed
    (state, value), (expected, expected_value) = planned(*args), jax.jit(step)(*args)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_there_is_no_arena_for_shards():
    step, args = loss_inside(as_it_is, count=1)
    message = (
        '`remat_train_step(placement="arena")` is for steps without a `shard_map`. Got a '
        'step with one in it: use `placement="xla"`, which plans its equations as those '
        "around it."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        remat_train_step(step, budget="60%", placement="arena").plan(*args)


def test_what_a_map_in_a_loop_makes_is_kept_or_made_again_by_itself():
    step, args = a_map_in_a_loop(as_it_is)
    plan = remat_train_step(step, budget="50%", donate_argnums=0).plan(*args)
    [part] = plan.loops[0].parts
    again = {item.primitive for item in part.recomputations}
    assert "shard_map" not in again
    assert not any("{V:" in text for text in part.kept), "shards are in no stack"


def test_what_no_plan_can_go_below_is_said():
    step, args = loss_inside(as_it_is)
    with pytest.raises(InfeasibleBudgetError, match="must be at least"):
        remat_train_step(step, budget=1).plan(*args)


def test_residuals_stay_shards():
    """Between a map and its gradient there are no whole arrays, but for those outside."""
    step, args = loss_inside(as_it_is)
    program = traced(step, *args).program
    given = {v for e in program.eqns if e.primitive is to_shards_p for v in e.invars}
    left = {v for e in program.eqns if e.primitive is to_whole_p for v in e.outvars}
    assert not given & left
    assert len(left) == 1 + len(jax.tree.leaves(args[0][0]))


def test_an_unchecked_result_that_differs_between_devices_is_one_of_them():
    """`check_vma=False` and no axis in the spec: the array has one shard for all."""
    mesh = mesh_of(COUNT)
    kinds = {"mesh": mesh, "check_vma": False}
    first = jax.shard_map(lambda x: x.sum(0), in_specs=DIVIDED, out_specs=WHOLE, **kinds)
    second = jax.shard_map(
        lambda s, x: x + s, in_specs=(WHOLE, DIVIDED), out_specs=DIVIDED, **kinds
    )
    x = placed(mesh, jnp.arange(8.0 * COUNT).reshape(2 * COUNT, 4), DIVIDED)
    step = traced(lambda x: second(first(x), x), x)
    assert has_shards(step.program)
    as_written = step.compile_lowered(step.lower_as_written())
    same_bits(as_written(x), step.compile(step.program)(x))


def test_constants_literals_and_unused_results():
    mesh = mesh_of(COUNT)
    table = np.linspace(0, 1, 8, dtype=np.float32)

    def inside(x, scale):
        whole = jnp.arange(8.0) * table
        return x * whole + scale, 3.0, lax.psum(x.sum(), "d"), x

    mapped = jax.shard_map(
        inside,
        mesh=mesh,
        in_specs=(DIVIDED, WHOLE),
        out_specs=(DIVIDED, WHOLE, WHOLE, DIVIDED),
    )

    def step(x):
        made, three, total, _ = mapped(x, 2.0)
        # The same equations as inside, of whole arrays.
        return made + three, total * (jnp.arange(8.0) * table)

    x = placed(mesh, jnp.ones((2 * COUNT, 8)), DIVIDED)
    step = traced(step, x)
    as_written = step.compile_lowered(step.lower_as_written())
    same_bits(as_written(x), step.compile(tag(step.program))(x))


def test_maps_that_differ_in_more_than_their_mesh_stay_operations():
    mesh = mesh_of(COUNT)
    checked, unchecked = (
        jax.shard_map(
            jnp.sin, mesh=mesh, in_specs=DIVIDED, out_specs=DIVIDED, check_vma=check_vma
        )
        for check_vma in (True, False)
    )
    x = placed(mesh, jnp.ones((2 * COUNT, 8)), DIVIDED)
    step = traced(lambda x: unchecked(checked(x) + 1), x)
    names = [eqn.primitive.name for eqn in step.program.eqns]
    assert names.count("shard_map") == 1
    assert has_shards(step.program)
    as_written = step.compile_lowered(step.lower_as_written())
    same_bits(as_written(x), step.compile(step.program)(x))


def test_a_map_with_effects_stays_an_operation():
    mesh = mesh_of(COUNT)

    def inside(x):
        jax.debug.callback(lambda _: None, x[0, 0])
        return jnp.sin(x)

    mapped = jax.shard_map(inside, mesh=mesh, in_specs=DIVIDED, out_specs=DIVIDED)
    x = placed(mesh, jnp.ones((2 * COUNT, 8)), DIVIDED)
    step = traced(lambda x: mapped(x) + 1, x)
    assert "shard_map" in [eqn.primitive.name for eqn in step.program.eqns]
    assert not has_shards(step.program)
