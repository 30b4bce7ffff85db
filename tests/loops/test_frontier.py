"""The frontier of an iteration against all choices that there are."""

import itertools
import random

import jax
import jax.numpy as jnp
import pytest

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.frontier import frontier
from coop_jax.loops.iteration import Iteration
from coop_jax.loops.min_cut import Network
from coop_jax.loops.pairs import find_pairs
from coop_jax.targets import named
from coop_jax.trace.costs import aval_bytes, seconds_again
from coop_jax.trace.program import reads, writes

TARGET = named("cpu")


def smallest_cut(num_nodes, edges):
    """The least capacity between nodes 0 and 1, over all divisions of the others."""
    others = range(2, num_nodes)
    return min(
        sum(c for a, b, c in edges if a in side and b not in side)
        for count in range(num_nodes - 1)
        for chosen in itertools.combinations(others, count)
        for side in [{0, *chosen}]
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_is_the_smallest(seed):
    choose = random.Random(seed)
    num_nodes = choose.randint(2, 9)
    edges = [
        (*choose.sample(range(num_nodes), 2), choose.randint(0, 9))
        for _ in range(choose.randint(0, 25))
    ]
    network = Network(num_nodes)
    for edge in edges:
        network.add_edge(*edge)
    side = network.source_side(0, 1)
    assert 0 in side
    assert 1 not in side
    found = sum(c for a, b, c in edges if a in side and b not in side)
    assert found == smallest_cut(num_nodes, edges)


def random_iteration(seed):
    """An iteration of a loop with a random body of a few values of random sizes."""
    choose = random.Random(seed)
    operations = [jnp.sin, jnp.tanh, lambda x: x * 2, lambda x: x * x, jnp.exp]

    def body(carry, x):
        values = [carry, x]
        for _ in range(choose.randint(2, 5)):
            a, b = choose.choices(values, k=2)
            made = choose.choice(operations)(a)
            if choose.random() < 0.5:
                made = made * b if choose.random() < 0.5 else (made @ b)
            values.append(made)
        return carry + values[-1], None

    def loss(x, xs):
        state = choose.getstate()

        def same(carry, x):
            choose.setstate(state)
            return body(carry, x)

        return jax.lax.scan(same, x, xs)[0].sum()

    args = jnp.ones((8, 8)), jnp.ones((3, 8, 8))
    program = TracedStep.trace(jax.grad(loss, (0, 1)), {}, args, {}).program
    pairs = find_pairs(program)
    return [Iteration.of(pair, program.invars, TARGET) for pair in pairs]


def all_choices(iteration):
    """(bytes, seconds) of every set of equations that may run again."""
    makers = {v: i for i, eqn in enumerate(iteration.forward) for v in writes(eqn)}
    anyway = iteration.stacked_anyway

    def price(runs):
        needed = set(iteration.needed)
        for run in runs:
            needed.update(reads(iteration.forward[run]))
        kept = [v for v in needed if makers.get(v) not in runs]
        size = sum(
            0 if v in anyway else iteration.bytes_if_kept.get(v, aval_bytes(v.aval))
            for v in kept
        )
        again = sum(seconds_again(iteration.forward[run], TARGET) for run in runs)
        return size, again + 2 * size / TARGET.bytes_per_second

    count = len(iteration.forward)
    for number in range(count + 1):
        for runs in itertools.combinations(range(count), number):
            yield price(set(runs))


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_lies_below_the_frontier(seed):
    for iteration in random_iteration(seed):
        if len(iteration.forward) > 12:
            continue
        choices = list(all_choices(iteration))
        hull = [(r.kept_bytes, r.seconds) for r in frontier(iteration, TARGET)]
        near = 1e-15
        assert hull[0][1] <= min(s for _, s in choices) + near
        assert hull[-1][0] == min(b for b, _ in choices)
        for (more, fast), (less, slow) in itertools.pairwise(hull):
            assert more > less
            for size, seconds in choices:
                line = fast + (slow - fast) * (more - size) / (more - less)
                assert seconds >= line - near


def test_random_bodies_have_choices_to_compare():
    small = [i for s in range(40) for i in random_iteration(s) if len(i.forward) <= 12]
    assert len(small) > 20
    assert sum(len(frontier(i, TARGET)) > 1 for i in small) > 5
