"""Planned at random: loops that keep any values from which their gradient can be made."""

from __future__ import annotations

import itertools

import jax
import numpy as np
from loops.one_by_one import bits, evaluate

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.frontier import Retained
from coop_jax.loops.menu import menu_of
from coop_jax.loops.parts import Part, PlannedPair
from coop_jax.targets import named
from coop_jax.trace.costs import aval_bytes
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again

TARGET = named("cpu")


def traced(step, args):
    return TracedStep.trace(step, {}, args, {}).program


def assert_equal_bits(program, planned, args):
    leaves = jax.tree.leaves(args)
    one = evaluate(program.to_jaxpr(), leaves)
    other = evaluate(planned.to_jaxpr(), leaves)
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(bits(a), bits(b))
    types = [[v.aval for v in p.outvars] for p in (program, planned)]
    assert str(types[0]) == str(types[1])


def random_retained(iteration, choose) -> Retained:
    """Any set of values from which the backward body can be made."""
    makers = {v: eqn for eqn in iteration.forward for v in writes(eqn)}
    given = makers.keys() | iteration.bytes_if_kept.keys()
    kept, runs, todo = set(), set(), list(iteration.needed)
    share = choose.random()
    while todo:
        v = todo.pop()
        maker = makers.get(v)
        if v in kept or maker in runs or v not in given:
            continue
        if maker is None or not may_run_again(maker) or choose.random() < share:
            kept.add(v)
        else:
            runs.add(maker)
            # A comparison runs with what selects what it compares with.
            todo += [v for eqn in iteration.run_again([maker]) for v in reads(eqn)]
    kept = {v for v in kept if makers.get(v) not in runs}
    size = sum(aval_bytes(v.aval) for v in kept)
    again = tuple(eqn for eqn in iteration.forward if eqn in runs)
    return Retained(frozenset(kept), size, 0.0, 0.0, again)


def random_parts(iteration, choose) -> tuple[Part, ...]:
    pair = iteration.pair
    cuts = {0, pair.length}
    if pair.may_be_divided:
        cuts |= {choose.randrange(pair.length) for _ in range(choose.randrange(3))}
    ordered = sorted(cuts)
    return tuple(
        Part(
            start,
            end - start,
            random_retained(iteration, choose),
            random_group(end - start, choose, iteration),
        )
        for start, end in itertools.pairwise(ordered)
    )


def random_group(count, choose, iteration):
    if not iteration.may_run_forward_again or not iteration.pair.may_be_divided:
        return 1
    return choose.choice([g for g in range(1, count + 1) if count % g == 0])


def planned_at_random(program, choose):
    """The program with all pairs of loops planned, also those in the bodies of others."""
    while choices := menu_of(program, TARGET).choices:
        planned = []
        for each in choices:
            parts = random_parts(each.iteration, choose)
            planned.append(PlannedPair(each.iteration, parts, each.path, each.num_runs))
        program = with_planned_pairs(program, planned)
    return program
