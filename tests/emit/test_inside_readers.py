"""Inside readers: what is kept is the fewest bytes, and the numbers stay the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import random_function, random_materialization
from steps import NEEDS_CUDA, QUICK, assert_trees_equal, copied, mlp_arguments, run, traced

import coop_jax
from coop_jax.base._compat import Literal
from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import (
    InsideReaders,
    inside_readers,
    made_again,
    with_inside_readers,
)
from coop_jax.graph.stored_values import from_rules
from coop_jax.trace.costs import is_fusible
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again

LENGTH = 60


def random_case(seed, length=LENGTH):
    function, args = random_function(seed, length)
    step = traced(function, *args)
    return step.program, random_materialization(step.program, seed, 0.5), args


def suffices(program, after, kept):
    """Slow: can all that is read late be made of the values kept?"""
    made = {v: eqn for eqn in program.eqns[: after + 1] for v in writes(eqn)}

    def can_be_made(v):
        if v not in made or v in kept:
            return True
        eqn = made[v]
        return is_fusible(eqn) and may_run_again(eqn) and all(map(can_be_made, reads(eqn)))

    late = {v for eqn in program.eqns[after + 1 :] for v in reads(eqn)}
    return all(map(can_be_made, late))


def bytes_of(program, stored, values):
    """Results are there in any case."""
    return sum(stored.bytes_of(v) for v in values if v not in program.outvars)


def test_no_fewer_bytes_suffice():
    """By all sets of the values, where there are few of them."""
    num_tried = 0
    for seed in range(60):
        program, stored, _ = random_case(seed, 14)
        found = inside_readers(program, stored)
        if found is None:
            continue
        early = [v for eqn in program.eqns[: found.after + 1] for v in writes(eqn)]
        sizes = {v: bytes_of(program, stored, [v]) for v in early}
        early = [v for v in early if sizes[v]]
        free = {v for v in sizes if not sizes[v]}
        assert suffices(program, found.after, {*found.kept, *free})
        if len(early) > 12:
            continue
        num_tried += 1
        least = min(
            sum(sizes[v] for v in chosen)
            for count in range(len(early) + 1)
            for chosen in itertools.combinations(early, count)
            if suffices(program, found.after, {*chosen, *free})
        )
        assert bytes_of(program, stored, found.kept) == least
    assert num_tried > 5


@pytest.mark.parametrize("seed", range(20))
def test_results_are_the_same(seed):
    program, stored, args = random_case(seed)
    inside = inside_readers(program, stored)
    if inside is None:
        pytest.skip("nothing is made again")
    again = made_again(program, inside)
    rewritten = with_inside_readers(program, inside)
    fences = [eqn for eqn in rewritten.eqns if eqn.primitive is fence_p]
    assert len(rewritten.eqns) == len(program.eqns) + len(again) + len(fences)
    with jax.disable_jit():
        assert_trees_equal(run(rewritten, args), run(program, args))


@pytest.mark.parametrize("seed", range(20))
def test_any_point_and_any_values_give_the_same_results(seed):
    """A plan file may name any."""
    program, _, args = random_case(seed)
    choose = np.random.default_rng(seed)
    after = int(choose.integers(len(program.eqns)))
    early = [v for eqn in program.eqns[: after + 1] for v in writes(eqn)]
    kept = tuple(v for v in early if choose.random() < 0.4)
    rewritten = with_inside_readers(program, InsideReaders(after, kept))
    with jax.disable_jit():
        assert_trees_equal(run(rewritten, args), run(program, args))


def test_late_readers_read_nothing_early_but_what_is_kept():
    for seed in range(20):
        program, stored, _ = random_case(seed)
        inside = inside_readers(program, stored)
        if inside is None:
            continue
        rewritten = with_inside_readers(program, inside)
        early = {v for eqn in program.eqns[: inside.after + 1] for v in writes(eqn)}
        results = {v for v in program.outvars if not isinstance(v, Literal)}
        late = {v for eqn in rewritten.eqns[inside.after + 1 :] for v in reads(eqn)}
        assert late & early <= {*inside.kept, *results}


def test_products_are_not_made_again():
    def step(weights, x):
        def loss(weights):
            y = x
            for weight in weights:
                y = jax.nn.gelu(y @ weight)
            return jnp.mean(y**2)

        return jax.grad(loss)(weights)

    program = traced(step, *mlp_arguments(layers=4)).program
    inside = inside_readers(program, from_rules(program))
    assert inside is not None
    again = {program.eqns[i].primitive.name for i in made_again(program, inside)}
    assert "tanh" in again
    assert "dot_general" not in again


def gelu_step(weights, x):
    def loss(weights):
        y = x
        for weight in weights:
            y = y + jax.nn.gelu(y @ weight) @ weight.T
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


@NEEDS_CUDA
def test_on_a_gpu_no_product_is_recomputed_where_elementwise_work_suffices(tmp_path):
    weights = [jax.ShapeDtypeStruct((256, 1024), "float32") for _ in range(4)]
    args = weights, jax.ShapeDtypeStruct((4096, 256), "float32")
    step = coop_jax.remat_train_step(
        gelu_step, budget="75%", planner=QUICK, donate_argnums=0
    )
    plan = step.plan(*args, target="h200")
    assert plan.num_inside_readers > 0
    assert plan.measured_bytes <= plan.budget_bytes
    assert not any(item.primitive == "dot_general" for item in plan.recomputations)
    assert f"inside       {plan.num_inside_readers} equations again" in str(plan)
    path = tmp_path / "plan.json"
    plan.save(path)
    same = coop_jax.remat_train_step(
        gelu_step, budget="75%", planner=QUICK, donate_argnums=0, plan=path
    ).plan(*args, target="h200")
    assert same.num_compilations == 1
    assert same.measured_bytes == plan.measured_bytes
    assert same.recomputations == plan.recomputations


def test_a_cpu_has_one_program():
    """It is not planned twice there."""
    step = coop_jax.remat_train_step(
        gelu_step, budget="75%", planner=QUICK, donate_argnums=0
    )
    weights, x = mlp_arguments(layers=4)
    assert step.plan(weights, x).num_inside_readers == 0
    assert_trees_equal(step(copied(weights), x)[1].shape, ())
