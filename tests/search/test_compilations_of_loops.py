"""Steps with loops are compiled a few times, and to run only what may be the answer."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scanned_steps import accumulated, nested, normal, recurrent, scanned
from steps import QUICK

from coop_jax import InfeasibleBudgetError, backends, remat_train_step
from coop_jax.backends.cpu.backend import CpuBackend
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.search.loop_search import LoopSearch
from coop_jax.search.tight_bodies import TightBodies
from coop_jax.searches import loop_search_of


class Recording(CpuBackend):
    """XLA:CPU, with the modules that were compiled to run and those to be read."""

    def __init__(self):
        super().__init__()
        self.ran: list[str] = []
        self.read: list[str] = []

    def compile(self, lowered, device, jit_options, options):
        kind = self.read if options == self.reading_options else self.ran
        kind.append(lowered.as_text())
        return super().compile(lowered, device, jit_options, options)


@pytest.fixture
def recording():
    backend = Recording()
    with backends.registered("cpu", backend):
        yield backend


def unrolled(weights, x):
    def loss(weights):
        value = x
        for w in jnp.unstack(weights):
            value = value + jnp.tanh(jnp.tanh(value @ w) * 1.1)
        return jnp.mean(value**2)

    return weights - 0.1 * jax.grad(loss)(weights)


def until_done():
    """Training steps in a `while_loop`."""

    def step(weights, x):
        def body(state):
            return unrolled(state[0], x), state[1] + 1

        return jax.lax.while_loop(lambda state: state[1] < 3, body, (weights, 0))[0]

    return step, (0.1 * normal(4, 32, 32), normal(256, 32))


def skipped():
    """A training step in a `cond`."""

    def step(weights, x):
        fine = jnp.isfinite(x).all()
        return jax.lax.cond(fine, lambda w: unrolled(w, x), lambda w: w, weights)

    return step, (0.1 * normal(4, 32, 32), normal(256, 32))


def refused(step, args):
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1, planner=QUICK).plan(*args)
    return caught.value.smallest_bytes


@pytest.mark.parametrize(
    ("make", "most"),
    [
        pytest.param(scanned, 15, marks=pytest.mark.slow),
        (until_done, 8),
        (skipped, 9),
        pytest.param(recurrent, 8, marks=pytest.mark.slow),
        pytest.param(nested, 17, marks=pytest.mark.slow),
        pytest.param(accumulated, 17, marks=pytest.mark.slow),
    ],
)
def test_to_refuse_a_budget_nothing_is_compiled_to_run(make, most, recording):
    refused(*make())
    assert recording.ran == []
    assert len(recording.read) <= most
    # A body that two plans have in common is read once, and so is each plan.
    assert max(collections.Counter(recording.read).values()) == 1


@pytest.mark.slow
def test_bodies_that_save_hardly_more_are_not_planned_after_a_miss(monkeypatch):
    """A quick plan may need a few bytes less than what was found to be the least."""
    step, args = until_done()
    budget = refused(step, args) * 9 // 10
    places = set()
    measure = LoopSearch._measure

    def recorded(search, number, at, *budget):
        places.add((number, at))
        return measure(search, number, at, *budget)

    def num_places():
        places.clear()
        with pytest.raises(InfeasibleBudgetError):
            remat_train_step(step, budget=budget, planner=QUICK).plan(*args)
        return len(places)

    def can_save(bodies, saved_bytes):
        return saved_bytes <= 1.02 * bodies.most_saved_bytes

    monkeypatch.setattr(LoopSearch, "_measure", recorded)
    expected = num_places()
    monkeypatch.setattr(TightBodies, "can_save_quickly", can_save)
    assert num_places() == expected


def test_of_plans_for_a_budget_two_are_compiled_to_run_at_most(recording):
    step, args = scanned()
    planned = remat_train_step(step, budget="80%", planner=QUICK)
    plan = planned.plan(*args)
    # The first to keep the budget, and the one that keeps least, which is faster here.
    assert len(recording.ran) == 2
    assert plan.num_compilations == len(recording.ran) + len(recording.read) == 5


def test_a_plan_that_was_read_is_compiled_to_run_where_it_is_the_answer(recording):
    step, args = recurrent()
    traced = TracedStep.trace(step, {}, args, {})
    as_written = compile_both(traced).total_bytes
    search = loop_search_of(traced, QUICK, as_written, lambda line: None)
    smallest = search.smallest()
    recording.ran.clear()
    found = search.best(smallest.total_bytes)
    assert found.total_bytes == smallest.total_bytes
    assert found.program is smallest.program
    assert recording.ran[-1:] == [traced.lower(found.program).as_text()]
    assert recording.ran[-1] in recording.read
    for got, wanted in zip(
        *map(jax.tree.leaves, (found.compiled(*args), step(*args))), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [scanned, until_done])
def test_a_step_that_keeps_its_budget_as_written_runs_as_written(make, recording):
    step, args = make()
    assert remat_train_step(step, budget="100%", planner=QUICK).plan(*args).is_unmodified
    assert len(recording.ran) == len(recording.read) == 1


def test_a_step_of_no_bytes_keeps_every_part_of_them(recording):
    planned = remat_train_step(lambda x: 2 * x, budget="50%", planner=QUICK)
    args = (np.zeros((0, 4), np.float32),)
    assert planned.plan(*args).is_unmodified
    assert list(map(len, (recording.ran, recording.read))) == [1, 2]
    assert planned(*args).shape == (0, 4)
