"""Parity: every call gives what `jax.jit` gives, from a step that fits and a planned one.

One list of cases (`parity_cases.py`). Each is run through `jax.jit`, through
`remat_train_step` with room for the step as written, and with a budget that it has to be
planned for; results, their types, weak types, shardings and commitment, deleted arguments,
compilations at a second call and errors have to be the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from api.parity_cases import CASES, DEEP, Case, arrays, update
from steps import as_numpy

from coop_jax import remat_train_step

BUDGET = "70%"


def described(leaf: Any) -> tuple:
    """The properties that two results share besides their numbers."""
    if not isinstance(leaf, jax.Array):
        return (type(leaf), getattr(leaf, "dtype", None))
    weak = getattr(leaf, "weak_type", False)  # keys have none
    return leaf.shape, leaf.dtype, weak, leaf.sharding, leaf.committed


def assert_like(expected: Any, found: Any) -> None:
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert described(a) == described(b)
        if getattr(a, "dtype", None) == jax.dtypes.float0:
            continue
        a, b = as_numpy(a), as_numpy(b)
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
        elif a.size:
            tolerance = 2e-2 if a.dtype.itemsize == 2 else 1e-5
            wide = "complex128" if a.dtype.kind == "c" else "float64"
            apart = np.max(np.abs(a.astype(wide) - b.astype(wide)))
            assert apart <= tolerance * max(1e-3, np.max(np.abs(a.astype(wide))))


class Compilations(logging.Handler):
    """Counts XLA's compilations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def emit(self, record):
        self.count += "Finished XLA compilation" in record.getMessage()

    def __enter__(self):
        self._logger = logging.getLogger("jax._src.dispatch")
        self._before = jax.config.jax_log_compiles
        self._propagates = [
            (logger, logger.propagate) for logger in map(logging.getLogger, _LOUD_LOGGERS)
        ]
        for logger, _ in self._propagates:
            logger.propagate = False
        jax.config.update("jax_log_compiles", True)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_):
        jax.config.update("jax_log_compiles", self._before)
        self._logger.removeHandler(self)
        for logger, propagates in self._propagates:
            logger.propagate = propagates


_LOUD_LOGGERS = ("jax._src.dispatch", "jax._src.interpreters.pxla")


def outcomes(function: Callable, the_case: Case) -> list[tuple[Any, list[bool], int]]:
    """Of every call: results, which arguments are gone, compilations of the call."""
    seen = []
    for args, kwargs in the_case.calls():
        with Compilations() as compilations:
            results = jax.block_until_ready(function(*args, **kwargs))
        gone = [
            leaf.is_deleted()
            for leaf in jax.tree.leaves((args, kwargs))
            if isinstance(leaf, jax.Array)
        ]
        seen.append((results, gone, compilations.count))
    return seen


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", CASES)
def test_calls_are_like_those_of_jit(name):
    the_case = CASES[name]()
    with the_case.context():
        expected = outcomes(jax.jit(the_case.step, **the_case.options), the_case)
        for budget in ("1TiB", BUDGET):
            # Any planner would do; this one is fast.
            step = remat_train_step(
                the_case.step, budget=budget, planner="lookahead", **the_case.options
            )
            args, kwargs = the_case.calls()[0]
            assert step.plan(*args, **kwargs).is_unmodified == (budget == "1TiB")
            found = outcomes(step, the_case)
            for (results, gone, count), (ours, ours_gone, ours_count) in zip(
                expected, found, strict=True
            ):
                assert_like(results, ours)
                assert gone == ours_gone
                # The first call of a kind compiles plans; one that `jax.jit` compiles
                # nothing for, compiles nothing here.
                assert count > 0 or ours_count == 0


@pytest.mark.parametrize("name", ["donated_positions", "asked_for_shardings", "a_partial"])
def test_options_of_a_jitted_step_are_kept(name):
    the_case = CASES[name]()
    jitted = jax.jit(the_case.step, **the_case.options)
    expected = outcomes(jitted, the_case)
    step = remat_train_step(jitted, budget=BUDGET, planner="lookahead", keep_unused=True)
    assert not step.plan(*the_case.calls()[0][0]).is_unmodified
    for (results, gone, _), (ours, ours_gone, _) in zip(
        expected, outcomes(step, the_case), strict=True
    ):
        assert_like(results, ours)
        assert gone == ours_gone


def error_of(call: Callable[[], Any]) -> tuple[type, str]:
    try:
        call()
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    pytest.fail("did not raise")


ERRORS = {
    "not an array": lambda f, w, x: f(w, object()),
    "a missing argument": lambda f, w, x: f(w),
    "an unknown argument": lambda f, w, x: f(w, x, speed=1),
    "shapes that do not fit": lambda f, w, x: f(w, x[:, :3]),
    "another tree": lambda f, w, x: f({"a": 1.0}, x),
    "an overflow": lambda f, w, x: f(w, x, 2**70),
    "two devices": lambda f, w, x: f(
        jax.device_put(w, jax.devices()[0]), jax.device_put(x, jax.devices()[1])
    ),
}


def jitted_and_planned():
    return jax.jit(update), remat_train_step(update, budget=BUDGET, planner="lookahead")


@pytest.fixture(scope="module")
def called_before():
    """Both, after a call that was right."""
    both = jitted_and_planned()
    for function in both:
        function(*arrays())
    return both


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("is_known", [False, True])
def test_errors_are_those_of_jit(name, is_known, called_before):
    weights, x = arrays()
    jitted, step = called_before if is_known else jitted_and_planned()
    expected, found = (
        error_of(lambda f=f: ERRORS[name](f, weights, x)) for f in (jitted, step)
    )
    assert found == expected


def test_a_donated_argument_cannot_be_used_again():
    weights, x = arrays(layers=DEEP)
    step = remat_train_step(update, budget=BUDGET, planner="lookahead", donate_argnums=0)
    step(weights, x)
    # Which of the two depends on the version of JAX.
    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        step(weights, x)
