"""A value that runs again and rounds otherwise is compared with what was selected from it.

XLA fuses a recomputation otherwise than the first computation, and then it may round
otherwise. Here every recomputed product or transcendental is off by a millionth: a
gradient that compares `x == max(x)` has to stay where it was.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_programs import random_schedule
from steps import TARGET, traced, xla_placement

from coop_jax import _ext
from coop_jax.base._compat import DropVar, Literal
from coop_jax.emit.inside_readers import InsideReaders, with_inside_readers
from coop_jax.emit.rewrite import RECOMPUTE_SCOPE
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.loops.frontier import frontier
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.pairs import find_pairs
from coop_jax.trace.program import reads, writes
from coop_jax.trace.ties import ties

_ERROR = 1e-6
_ROUNDS = frozenset("sin cos tanh logistic exp mul dot_general".split())


def largest_of_rows(x, w):
    y = jnp.sin(x @ w)
    return x + y.max(1, keepdims=True) * y


def largest_of_groups(x, w):
    y = jnp.tanh(x @ w)
    rows = jnp.arange(len(x)) % 3
    return x + jnp.full((3, x.shape[1]), -9.0).at[rows].max(y)[rows] * y


def larger_than_before(x, w):
    y = jnp.exp(x @ w)
    return jnp.where(y == jnp.maximum(y, x), jnp.sin(y), x)


BLOCKS = [largest_of_rows, largest_of_groups, larger_than_before]


def gradient(block):
    def loss(ws, x):
        for w in ws:
            x = block(x, w)
        return jnp.mean(x**2)

    return jax.grad(loss)


def arguments():
    random = np.random.default_rng(0)
    ws = [jnp.asarray(random.normal(size=(6, 6)) / 3, "float32") for _ in range(3)]
    return ws, jnp.asarray(random.normal(size=(8, 6)), "float32")


def run_inexactly(program, args):
    """The results, where what is made again is off by a little."""
    env = dict(zip(program.constvars, program.consts, strict=True))
    env.update(zip(program.invars, jax.tree.leaves(args), strict=True))

    def value(atom):
        return atom.val if isinstance(atom, Literal) else env[atom]

    num_changed = 0
    for eqn in program.eqns:
        results = eqn.primitive.bind(*map(value, eqn.invars), **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        is_again = RECOMPUTE_SCOPE in str(eqn.source_info.name_stack)
        if is_again and eqn.primitive.name in _ROUNDS:
            results = [x * np.float32(1 + _ERROR) for x in results]
            num_changed += 1
        named = zip(eqn.outvars, results, strict=True)
        env.update((v, x) for v, x in named if not isinstance(v, DropVar))
    return [value(v) for v in program.outvars], num_changed


def assert_near(found, expected):
    for a, b in zip(found, expected, strict=True):
        scale = np.abs(b).max()
        np.testing.assert_allclose(a, b, rtol=0, atol=1_000 * _ERROR * scale)


@pytest.mark.parametrize("block", BLOCKS)
def test_under_random_schedules(block):
    step = traced(gradient(block), *arguments())
    expected, _ = run_inexactly(step.program, arguments())
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    placement = xla_placement(step.program, "cpu")
    for seed in range(20):  # Few of them keep what is selected and not what from.
        schedule = random_schedule(graph, seed, 0.1)
        assert _ext.validate(graph.core, schedule) == []
        program = placement.realize(graph, schedule).program
        found, num_changed = run_inexactly(program, arguments())
        assert num_changed > 0
        assert_near(found, expected)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("block", BLOCKS)
def test_inside_of_late_readers(block, seed):
    program = traced(gradient(block), *arguments()).program
    expected, _ = run_inexactly(program, arguments())
    choose = np.random.default_rng(seed)
    after = int(choose.integers(len(program.eqns) // 2, len(program.eqns) - 5))
    early = [v for eqn in program.eqns[: after + 1] for v in writes(eqn)]
    kept = tuple(v for v in early if choose.random() < 0.4)
    found, _ = run_inexactly(
        with_inside_readers(program, InsideReaders(after, kept)), arguments()
    )
    assert_near(found, expected)


@pytest.mark.parametrize("block", BLOCKS)
def test_in_the_bodies_of_loops(block):
    def loss(ws, x):
        return jnp.mean(jax.lax.scan(lambda x, w: (block(x, w), None), x, ws)[0] ** 2)

    ws, x = arguments()
    program = traced(jax.grad(loss), jnp.stack(ws), x).program
    (pair,) = find_pairs(program)
    iteration = Iteration.of(pair, program.invars, TARGET)
    tied = ties(iteration.forward)
    selected = frozenset().union(*tied.values())
    compared = {iteration.forward[index].outvars[0] for index in tied}
    num_compared = 0
    for retained in frontier(iteration, TARGET):
        made: set = set()
        for eqn in iteration.run_again(retained.recomputed):
            if not compared.isdisjoint(eqn.outvars):
                num_compared += 1
                assert selected.isdisjoint(reads(eqn)), "it may have been kept"
                assert not made.isdisjoint(reads(eqn))
            made.update(writes(eqn))
    assert num_compared > 0
