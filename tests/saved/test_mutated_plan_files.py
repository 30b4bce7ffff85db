"""A changed plan file is refused by the name of its fault, or gives the same numbers."""

import functools
import re
import unittest.mock

import jax
import numpy as np
import pytest
import scanned_steps
from saved.mutated_files import mutated
from saved.recipes import plans_of_loops, straight_lines, subject_of, text_of
from steps import assert_trees_equal, mlp_arguments, mlp_step

import coop_jax
from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.saved import loops
from coop_jax.saved.fingerprint import digest, texts_of
from coop_jax.saved.recipe import PlanFile

REFUSAL = re.compile(
    r"`fit\(plan='plan.json'\)` cannot use this plan file\. .+\. Plan again without ", re.S
)


def evaluated(closed, values):
    """The results of a program, equation by equation, also those of its loops: nothing is
    fused, so that equal programs give equal bits, and no loop is compiled."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))

    def read(atom):
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "scan":
            results = _looped(eqn, operands)
        else:
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _looped(eqn, operands):
    num_consts, num_carry = _compat.scan_sizes(eqn)
    consts, rest = operands[:num_consts], operands[num_consts:]
    carry, stacks = rest[:num_carry], [np.asarray(stack) for stack in rest[num_carry:]]
    length = eqn.params["length"]
    order = range(length)[::-1] if eqn.params["reverse"] else range(length)
    entries = [None] * length
    for index in order:
        now = [stack[index] for stack in stacks]
        results = evaluated(eqn.params["jaxpr"], [*consts, *carry, *now])
        carry, entries[index] = results[:num_carry], results[num_carry:]
    written = [
        np.stack([np.asarray(e) for e in each]) for each in zip(*entries, strict=True)
    ]
    return [*carry, *written]


def of_straight_lines():
    args = mlp_arguments(layers=3, batch=16, width=4)
    return _case(mlp_step, args, straight_lines)


def of_loops():
    return _case(*scanned_steps.scanned(layers=5), plans_of_loops)


def of_loops_and_bodies():
    tight = functools.partial(plans_of_loops, is_tight=True)
    return _case(*scanned_steps.scanned(layers=5), tight)


def _case(step, args, recipes):
    subject = subject_of(step, args)
    return subject, args, [text_of(recipe) for recipe in recipes(subject)]


class Anything(str):
    """Equal to every string."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def check(case, count, seed):
    """Returns how many files were refused, and the programs of the others."""
    subject, args, texts = case
    values = jax.tree.leaves(args)
    expected = evaluated(subject.program.to_jaxpr(), values)
    random = np.random.default_rng(seed)
    refused, programs = 0, set()
    for number in range(count):
        changed = mutated(texts[number % len(texts)], random)
        try:
            file = PlanFile.of_text("plan.json", changed, "fit")
            # As if plans of loops came with the digest of the program that they make: else
            # nothing but that refuses those that are plans.
            with unittest.mock.patch.object(loops, "digest", return_value=Anything()):
                made = file.plan_of(subject, "fit")
        except coop_jax.PlanFileError as error:
            refused += REFUSAL.match(str(error)) is not None
            continue
        program = subject.program if made.program is None else made.program
        key = digest(texts_of(program))
        if key not in programs:
            programs.add(key)
            assert_trees_equal(evaluated(program.to_jaxpr(), values), expected)
    return refused, programs


@pytest.mark.parametrize("case", [of_straight_lines, of_loops])
def test_thirty_files(case):
    refused, programs = check(case(), 30, 1)
    assert refused > 15
    assert programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "others"), [(of_straight_lines, 0), (of_loops_and_bodies, 1)]
)
def test_two_thousand_files(case, others):
    """Of straight lines no change makes another plan: what it claims is no longer true."""
    subject, args, texts = case()
    refused, programs = check((subject, args, texts), 2000, 2)
    assert refused > 1200
    assert len(programs) >= len(texts) + others
