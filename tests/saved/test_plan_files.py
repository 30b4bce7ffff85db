"""A step that starts from a plan file is the step that was planned, compiled once."""

import contextlib
import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scanned_steps
from optimized_module import module_text
from saved.recipes import plans_of_loops, subject_of, text_of
from steps import (
    NEEDS_CUDA,
    NEEDS_TPU,
    assert_trees_equal,
    copied,
    mlp_arguments,
    mlp_step,
)

import coop_jax
from coop_jax.saved.document import contents_of

SPEC = jax.sharding.PartitionSpec
COMPILATION = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def counted_compilations():
    """The compilations by XLA meanwhile, of this package or not."""
    found = []
    is_open = [True]

    def listen(event, duration, **kwargs):
        if is_open[0] and event == COMPILATION:
            found.append(kwargs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    is_open[0] = False


def hlo_of(step, target, args):
    """The optimized module of a step."""

    def text(budgeted, args, kwargs):
        placed = budgeted._placed(target, args, kwargs)
        return module_text(budgeted.fitted(*placed).compiled)

    return step._within(args, {}, text)


def planned(fn, budget="70%", planner="lookahead", **options):
    return coop_jax.remat_train_step(fn, budget=budget, planner=planner, **options)


def saved(step, path, *args):
    """The plan of a step, saved."""
    plan = step.plan(*args)
    plan.save(path)
    return plan


SMALL = functools.partial(mlp_arguments, layers=5, batch=512, width=32)
DONATED = {"donate_argnums": 0}


def check_round_trip(step, again, args, path):
    """The step of a plan file is the step that was planned: it is compiled once, and is the
    same executable; its report is the same but for the number of compilations, and for the
    time relative to the step as written, which is not compiled."""
    plan = saved(step, path, *args)
    with counted_compilations() as found:
        from_file = again(plan=path)
        started = from_file.plan(*args)
    assert started.num_compilations == len(found) == 1
    assert hlo_of(from_file, None, args) == hlo_of(step, None, args)
    plan = dataclasses.replace(plan, executable_overhead=None)
    assert str(started).splitlines()[:-1] == str(plan).splitlines()[:-1]
    assert started.measured_bytes == plan.measured_bytes
    return plan, from_file


def test_a_straight_line(tmp_path):
    again = functools.partial(planned, mlp_step, **DONATED)
    step, path = again(), tmp_path / "plan.json"
    plan, from_file = check_round_trip(step, again, SMALL(), path)
    assert plan.recomputed_flops > 0
    assert_trees_equal(from_file(*copied(SMALL())), step(*copied(SMALL())))
    from_file.plan(*SMALL()).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_a_step_of_equinox(tmp_path):
    keys = jax.random.split(jax.random.key(0), 6)
    layers = [eqx.nn.Linear(32, 32, key=key) for key in keys]
    model = eqx.nn.Sequential([m for one in layers for m in (one, eqx.nn.Lambda(jnp.tanh))])

    def step(model, x):
        grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
        return eqx.apply_updates(model, grads)

    again = functools.partial(planned, step, **DONATED)
    args = model, jnp.ones((512, 32))
    plan, _ = check_round_trip(again(), again, args, tmp_path / "plan.json")
    assert plan.recomputed_flops > 0


def test_partial_results_of_wide_fusions(tmp_path):
    def step(weights, x):
        total = jnp.zeros_like(x)
        for weight in weights:
            x = jnp.tanh(x @ weight)
            total = total + x @ weight.T
        return jnp.sin(total) @ weights[0]

    args = [jnp.eye(64) * (1 + k) for k in range(12)], jnp.ones((4096, 64))
    again = functools.partial(planned, step, budget="60%", planner="search")
    plan, _ = check_round_trip(again(), again, args, tmp_path / "plan.json")
    assert plan.recomputed_flops == 0 < plan.num_fences


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "batch"),
    [
        pytest.param("h200", 2048, marks=NEEDS_CUDA),
        pytest.param("tpu v5e", 65536, marks=NEEDS_TPU),
    ],
)
def test_absent_targets(target, batch, tmp_path):
    args = mlp_arguments(layers=5, batch=batch, width=256)
    path = tmp_path / "plan.json"
    step = planned(mlp_step, "80%", **DONATED)
    plan = step.plan(*args, target=target)
    plan.save(path)
    assert plan.recomputed_flops > 0
    from_file = planned(mlp_step, "80%", plan=path, **DONATED)
    assert from_file.plan(*args, target=target).num_compilations == 1
    assert hlo_of(from_file, target, args) == hlo_of(step, target, args)
    named = f"It was made for the target '{target}', and the step is for 'cpu'. Plan again"
    with pytest.raises(coop_jax.PlanFileError, match=named):
        from_file.plan(*args)


def check_loops(make, budget, tmp_path, **options):
    fn, args = make()
    again = functools.partial(planned, fn, budget, "search", **options)
    path = tmp_path / "plan.json"
    plan, from_file = check_round_trip(again(), again, args, path)
    assert plan.loops
    assert from_file.plan(*args).loops == plan.loops
    return plan


def test_loops(tmp_path):
    plan = check_loops(functools.partial(scanned_steps.scanned, layers=8), "70%", tmp_path)
    assert plan.schedule is None


@pytest.mark.parametrize("name", scanned_steps.STEPS)
def test_plans_of_loops_however_they_are_written(name):
    """`text_of` says whether a file makes the program that it was made of."""
    make, num_pairs = scanned_steps.STEPS[name]
    for recipe in plans_of_loops(subject_of(*make())):
        levels = contents_of(text_of(recipe))["loops"]["pairs"]
        assert len(levels[0] if levels else ()) == num_pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scan"])
def test_plans_of_bodies(name):
    make, _ = scanned_steps.STEPS[name]
    texts = map(text_of, plans_of_loops(subject_of(*make()), is_tight=True))
    assert any(contents_of(text)["loops"]["bodies"] for text in texts)


@pytest.mark.slow
def test_an_arena(tmp_path):
    """Its exchanges are those of the plan, and no longer those of the process."""
    args = mlp_arguments()
    again = functools.partial(planned, mlp_step, "70%", "search", placement="arena")
    step, path = again(), tmp_path / "plan.json"
    plan = saved(step, path, *args)
    assert plan.arena.stays
    from_file = again(plan=path)
    started = from_file.plan(*args)
    assert started.num_compilations == 1
    assert started.arena.stays == plan.arena.stays
    assert_trees_equal(from_file(*args), step(*args))


@pytest.mark.slow
def test_a_sharded_step(tmp_path):
    """On as many devices, whichever they are."""
    plans, devices = [], jax.devices()
    for chosen, path in ((devices[:2], None), (devices[2:4], tmp_path / "plan.json")):
        mesh = jax.sharding.Mesh(np.array(chosen), ("data",))
        split = jax.sharding.NamedSharding(mesh, SPEC("data"))
        weights, x = mlp_arguments(layers=5, batch=1024, width=32)
        weights = jax.device_put(weights, jax.sharding.NamedSharding(mesh, SPEC()))
        args = weights, jax.device_put(x, split)
        plans.append(planned(mlp_step, plan=path).plan(*args))
        plans[0].save(tmp_path / "plan.json")
    assert plans[0].recomputed_flops > 0
    assert plans[1].num_compilations == 1
    assert plans[1].measured_bytes == plans[0].measured_bytes
