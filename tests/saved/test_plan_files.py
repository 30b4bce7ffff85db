"""A step that starts from a plan file is the step that was planned, compiled once."""

import contextlib
import functools
import re

import jax
import numpy as np
import pytest
import scanned_steps
from saved.recipes import plans_of_loops, subject_of, text_of
from steps import assert_trees_equal, copied, mlp_arguments, mlp_step

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


def hlo_of(step, *args):
    """The optimized module of a step, without names and tables of source lines."""
    text = step._within(args, {}, lambda b, a, k: b.fitted(a, k).compiled.as_text())
    body = text[re.search(r"^(%|ENTRY)", text, re.M).start() :]
    return re.sub(r",? metadata=\{[^}]*\}", "", body)


def planned(fn, budget="70%", **options):
    return coop_jax.remat_train_step(fn, budget=budget, **options)


def saved(step, path, *args):
    """The plan of a step, saved."""
    plan = step.plan(*args)
    plan.save(path)
    return plan


SMALL = functools.partial(mlp_arguments, layers=5, batch=512, width=32)
DONATED = {"donate_argnums": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A planned step, and the path of its plan file."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    step = planned(mlp_step, **DONATED)
    saved(step, path, *SMALL())
    return step, path


def check_round_trip(step, again, args, path):
    """The step of a plan file is the step that was planned: it is compiled once, and is the
    same executable; its report is the same but for the number of compilations."""
    plan = saved(step, path, *args)
    with counted_compilations() as found:
        from_file = again(plan=path)
        started = from_file.plan(*args)
    assert started.num_compilations == len(found) == 1
    assert hlo_of(from_file, *args) == hlo_of(step, *args)
    assert str(started).splitlines()[:-1] == str(plan).splitlines()[:-1]
    assert started.measured_bytes == plan.measured_bytes
    return plan, from_file


def test_a_straight_line(small, tmp_path):
    step, _ = small
    again = functools.partial(planned, mlp_step, **DONATED)
    plan, from_file = check_round_trip(step, again, SMALL(), tmp_path / "plan.json")
    assert plan.recomputed_flops > 0
    assert_trees_equal(from_file(*copied(SMALL())), step(*copied(SMALL())))
    from_file.plan(*SMALL()).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "plan.json").read_text()


def check_loops(make, budget, tmp_path, **options):
    fn, args = make()
    again = functools.partial(planned, fn, budget, **options)
    path = tmp_path / "plan.json"
    plan, from_file = check_round_trip(again(), again, args, path)
    assert plan.loops
    assert from_file.plan(*args).loops == plan.loops
    return plan


def test_loops(tmp_path):
    plan = check_loops(functools.partial(scanned_steps.scanned, layers=12), "60%", tmp_path)
    assert plan.schedule is None


@pytest.mark.parametrize("name", scanned_steps.STEPS)
def test_plans_of_loops_however_they_are_written(name):
    """`text_of` says whether a file makes the program that it was made of."""
    make, num_pairs = scanned_steps.STEPS[name]
    recipes = list(plans_of_loops(subject_of(*make())))
    assert len(recipes) >= num_pairs
    for recipe in recipes:
        pairs = contents_of(text_of(recipe))["loops"]["pairs"]
        assert len(pairs) == num_pairs


def test_an_arena(tmp_path):
    """Its exchanges are those of the plan, and no longer those of the process."""
    args = mlp_arguments()
    again = functools.partial(
        planned, mlp_step, "60%", placement="arena", planner="lookahead"
    )
    step, path = again(), tmp_path / "plan.json"
    plan = saved(step, path, *args)
    assert plan.arena.stays
    from_file = again(plan=path)
    started = from_file.plan(*args)
    assert started.num_compilations == 1
    assert started.arena.stays == plan.arena.stays
    assert_trees_equal(from_file(*args), step(*args))


def test_a_sharded_step(tmp_path):
    """On as many devices, whichever they are."""
    plans, devices = [], jax.devices()
    for chosen, path in ((devices[:2], None), (devices[2:4], tmp_path / "plan.json")):
        mesh = jax.sharding.Mesh(np.array(chosen), ("data",))
        split = jax.sharding.NamedSharding(mesh, SPEC("data"))
        weights, x = mlp_arguments(layers=5, batch=1024, width=32)
        weights = jax.device_put(weights, jax.sharding.NamedSharding(mesh, SPEC()))
        args = weights, jax.device_put(x, split)
        plans.append(planned(mlp_step, plan=path, planner="lookahead").plan(*args))
        plans[0].save(tmp_path / "plan.json")
    assert plans[0].recomputed_flops > 0
    assert plans[1].num_compilations == 1
    assert plans[1].measured_bytes == plans[0].measured_bytes
