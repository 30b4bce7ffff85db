"""Gradients of `cond`s run the branches again inside of their own."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as SPEC
from loops.planned_at_random import assert_equal_bits, planned_at_random, traced
from scanned_steps import LAYERS, WIDTH, descent, normal, weights
from steps import QUICK, largest_difference
from steps import traced as traced_step

from coop_jax import InfeasibleBudgetError, fit, pipeline, remat_train_step
from coop_jax.loops.branches_again import with_branches_again, with_residuals_inside
from coop_jax.searches import seconds_on_device
from coop_jax.trace.costs import flops
from coop_jax.xla.memory_figures import memory_figures

ROWS = 512


def gated(x, w):
    return x + jnp.tanh((jax.nn.silu(x @ w["up"]) * jnp.sin(x @ w["up"])) @ w["down"])


def mixed(x, w):
    return x + jnp.tanh(jax.nn.gelu(x @ w["up"]) * 0.9) @ w["down"]


def attended(x, w):
    heads = x.reshape(-1, 32, WIDTH)
    shares = jax.nn.softmax(heads @ heads.swapaxes(1, 2))
    return x + jnp.tanh((shares @ heads).reshape(x.shape) @ w["up"]) @ w["down"]


def kinds(layers=LAYERS):
    return jnp.arange(layers) % 3


def switched(wrap=lambda f: f, of_branch=lambda f: f):
    branches = tuple(map(of_branch, (gated, mixed, attended)))

    @wrap
    def layer(x, w, kind):
        return lax.switch(kind, branches, jnp.sin(x), w)

    return layer


def scanned(wrap=lambda f: f, of_branch=lambda f: f, rows=ROWS):
    """Layers of several kinds in a loop."""
    layer = switched(wrap, of_branch)

    def loss(w, x, of_layers):
        x, _ = lax.scan(lambda x, wk: (layer(x, *wk), None), x, (w, of_layers))
        return jnp.mean(x**2)

    return descent(loss, weights(), normal(rows, WIDTH), kinds())


def unrolled(of_branch=lambda f: f, rows=ROWS, layers=LAYERS):
    """The same in a straight line."""
    layer = switched(of_branch=of_branch)

    def loss(w, x, of_layers):
        for i in range(layers):
            x = layer(x, jax.tree.map(lambda w, i=i: w[i], w), of_layers[i])
        return jnp.mean(x**2)

    return descent(loss, weights(layers), normal(rows, WIDTH), kinds(layers))


def accumulated(of_branch=lambda f: f):
    """The same over parts of a batch, in a loop that is nobody's gradient."""
    step, (params, x, of_layers) = unrolled(of_branch, 4 * ROWS, layers=3)

    def whole(params, x, of_layers):
        def one(params, x):
            return step(params, x, of_layers)

        return lax.scan(one, params, x.reshape(4, ROWS, WIDTH))

    return whole, (params, x, of_layers)


def conditional():
    """A value that more than the gradient of its `cond` reads, and a branch that keeps
    nothing."""

    def loss(w, x, flags):
        first = jax.tree.map(lambda w: w[0], w)
        for i in range(3):
            y = lax.cond(flags[i] > 0, gated, lambda x, w: x, x, first)
            x = jnp.sin(y) * y + x
        return jnp.mean(x**2)

    return descent(loss, weights(), normal(ROWS, WIDTH), jnp.array([1, 0, 1]))


def nested():
    """Branches that have branches."""

    def inner(x, w):
        return lax.cond(x[0, 0] > 0, gated, mixed, x, w)

    def loss(w, x, flags):
        first = jax.tree.map(lambda w: w[0], w)
        for i in range(2):
            x = lax.switch(flags[i], (inner, attended), x, first)
        return jnp.mean(x**2)

    return descent(loss, weights(), normal(ROWS, WIDTH), jnp.array([0, 1]))


def twice():
    """The same branches twice in a row, without a gradient between."""
    step, (params, x, _) = conditional()

    def same(params, x, flags):
        for _ in range(2):
            first = jax.tree.map(lambda w: w[0], params)
            x = lax.cond(flags[0] > 0, gated, lambda x, w: x, x, first)
        return step(params, x, flags)

    return same, (params, x, jnp.array([1, 0, 1]))


STEPS = {
    "unrolled": unrolled,
    "accumulated": accumulated,
    "conditional": conditional,
    "nested": nested,
    "twice": twice,
}
by_name = pytest.mark.parametrize("name", STEPS)


def forms_of(name):
    step, args = STEPS[name]()
    program = traced(step, args)
    return program, *with_residuals_inside(program), args


@by_name
def test_results_have_equal_bits(name):
    program, changed, again, args = forms_of(name)
    assert again
    assert_equal_bits(program, changed, args)


@by_name
def test_what_runs_again_is_all_that_is_added(name):
    program, changed, again, _ = forms_of(name)
    before, after = (sum(map(flops, p.eqns)) for p in (program, changed))
    # Equal work of a branch and its gradient merges.
    assert before <= after <= before + sum(map(flops, again))


def test_residuals_of_branches_are_no_results():
    program, changed, again, _ = forms_of("unrolled")
    conds = [
        [eqn for eqn in p.eqns if eqn.primitive.name == "cond"] for p in (program, changed)
    ]
    assert len(conds[0]) == len(conds[1]) == 2 * LAYERS
    assert len(again) == LAYERS
    for eqn in conds[1][:LAYERS]:
        assert [v.aval.shape for v in eqn.outvars] == [(ROWS, WIDTH)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: descent(lambda w, x: jnp.sum(x @ w["up"][0]), weights(), normal(8, WIDTH)),
        lambda: unrolled(jax.checkpoint),
    ],
    ids=["without branches", "branches under checkpoints"],
)
def test_a_step_without_residuals_of_branches_is_the_same_object(make):
    step, args = make()
    program = traced(step, args)
    changed, again = with_residuals_inside(program)
    assert changed is program
    assert not again


def test_what_a_branch_says_is_said_once():
    def spoken(x, w):
        y = gated(x, w)
        jax.debug.callback(lambda _: None, y[0, 0])
        return y

    def loss(w, x):
        first = jax.tree.map(lambda w: w[0], w)
        return jnp.mean(lax.cond(x[0, 0] > 0, spoken, mixed, x, first) ** 2)

    step, args = descent(loss, weights(), normal(ROWS, WIDTH))
    program = traced(step, args)
    assert with_residuals_inside(program) == (program, [])


def test_equations_that_others_read_stay():
    step, args = unrolled(layers=1)
    program = traced(step, args)
    # The value of the layer is read behind the loss, so the first `cond` stays.
    assert with_branches_again(program.eqns, program.outvars) == list(program.eqns)
    [first, second] = [e for e in program.eqns if e.primitive.name == "cond"]
    alone = [e for e in program.eqns if e is not second]
    assert with_branches_again(alone, program.outvars) == alone
    assert with_branches_again([first], [first.outvars[0]]) == [first]
    joint = with_branches_again([first, second], second.outvars)
    assert [eqn.primitive.name for eqn in joint] == ["cond"]
    assert len(joint[0].invars) < len(first.invars) + len(second.invars)
    assert with_branches_again([first, second], [*second.outvars, first.outvars[1]]) == [
        first,
        second,
    ]


@pytest.mark.parametrize("seed", range(6))
def test_loops_that_run_branches_again_compute_the_same(seed):
    step, args = scanned(rows=64)
    program = traced(step, args)
    planned = planned_at_random(program, random.Random(seed))
    assert_equal_bits(program, planned, args)


def needed_bytes(step, args):
    return memory_figures(jax.jit(step).lower(*args).compile()).total_bytes


def planned_at(step, args, budget):
    planned = remat_train_step(step, budget=budget, planner=QUICK)
    plan = planned.plan(*args)
    assert plan.measured_bytes <= budget
    assert largest_difference(jax.jit(step)(*args), planned(*args)) < 1e-5
    return plan


def fitted_seconds(step, args, budget):
    """Seconds of the executable of a plan."""
    given = traced_step(step, *args)
    fitted = pipeline.fit_step(given, budget, QUICK, lambda _: None)
    return seconds_on_device(given)(fitted.compiled)


def of_conds(plan):
    return [item for item in plan.recomputations if item.primitive == "cond"]


def test_layers_of_several_kinds_fit_as_by_hand():
    step, args = scanned()
    by_hand, _ = scanned(jax.checkpoint, jax.checkpoint)
    budget = int(1.02 * needed_bytes(by_hand, args))
    assert budget < 0.5 * needed_bytes(step, args)
    plan = planned_at(step, args, budget)
    assert not of_conds(plan)  # Each iteration runs it again, once.
    assert any(item.primitive == "cond" for item in plan.loops[0].parts[0].recomputations)


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("make", [unrolled, accumulated])
def test_a_straight_line_fits_as_by_hand(make):
    step, args = make()
    by_hand, _ = make(jax.checkpoint)
    budget = int(1.02 * needed_bytes(by_hand, args))
    plan = planned_at(step, args, budget)
    assert plan.recomputed_flops > 0


@pytest.mark.slow
@pytest.mark.hand
def test_the_faster_form_is_taken(monkeypatch):
    step, args = unrolled(layers=3)
    budget = needed_bytes(step, args) // 2
    taken = planned_at(step, args, budget)
    forms = []
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.BranchesAgain, "of", lambda *_: None)
        forms.append(fitted_seconds(step, args, budget))
        assert of_conds(planned_at(step, args, budget))
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.BranchesAgain, "is_faster", lambda *_: True)
        forms.append(fitted_seconds(step, args, budget))
    assert fitted_seconds(step, args, budget) == pytest.approx(min(forms), rel=1e-6)
    assert forms[0] != forms[1]
    assert taken.num_compilations > 4  # Of both forms.


@pytest.mark.parametrize("is_scanned", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_branches_with_maps_over_shards(is_scanned):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    rows, columns = SPEC("data", None), SPEC(None, "model")

    def sent(x, w):
        return lax.psum(jnp.tanh(jnp.sin(x @ w)) @ w.T, "model")

    def shared(x, w):
        return jax.shard_map(sent, mesh=mesh, in_specs=(rows, columns), out_specs=rows)(
            x, w
        )

    def layer(x, w, kind):
        return x + lax.cond(kind > 0, shared, lambda x, w: jnp.sin(x @ w) @ w.T, x, w)

    def loss(w, x, of_layers):
        if is_scanned:
            x, _ = lax.scan(lambda x, wk: (layer(x, *wk), None), x, (w, of_layers))
        else:
            for i in range(LAYERS):
                x = layer(x, w[i], of_layers[i])
        return jnp.mean(x**2)

    step, (w, x, of_layers) = descent(
        loss, normal(LAYERS, WIDTH, 4 * WIDTH), normal(ROWS, WIDTH), kinds()
    )
    w = jax.device_put(w, NamedSharding(mesh, SPEC(None, None, "model")))
    x = jax.device_put(x, NamedSharding(mesh, rows))
    planned_at(step, (w, x, of_layers), needed_bytes(step, (w, x, of_layers)) // 2)


@pytest.mark.slow
@pytest.mark.hand
def test_where_nothing_else_keeps_the_budget_branches_run_twice(tmp_path, monkeypatch):
    step, args = unrolled()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.BranchesAgain, "of", lambda *_: None)
        with pytest.raises(InfeasibleBudgetError) as refused:
            planned_at(step, args, 1)
        smallest = refused.value.smallest_bytes
    with pytest.raises(InfeasibleBudgetError) as refused:
        planned_at(step, args, 1)
    assert refused.value.smallest_bytes < smallest
    planned_at(step, args, refused.value.smallest_bytes)
    plan = planned_at(step, args, smallest - 1)
    [item] = of_conds(plan)
    assert item.count == LAYERS
    assert item.flops == sum(map(flops, with_residuals_inside(traced(step, args))[1]))
    total = sum(map(flops, traced(step, args).eqns))
    assert plan.total_flops == total
    assert plan.recomputed_flops >= item.flops
    plan.save(tmp_path / "plan.json")
    again = fit(
        step, *args, budget=smallest - 1, planner=QUICK, plan=tmp_path / "plan.json"
    )
    assert again.measured_bytes == plan.measured_bytes
    assert again.recomputations == plan.recomputations
    assert again.recomputed_flops == plan.recomputed_flops
    assert again.total_flops == plan.total_flops
    assert again.compute_overhead == pytest.approx(plan.compute_overhead)
