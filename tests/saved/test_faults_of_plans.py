"""What is no plan of the step is refused by the part that is none."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
import scanned_steps
from saved import recipes
from saved.mutated_files import places
from steps import TARGET, mlp_arguments, mlp_step

from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.saved.document import PlanFault, contents_of
from coop_jax.saved.recipe import rebuilt
from coop_jax.saved.straight_line import check_halved


@functools.cache
def straight_line():
    subject = recipes.subject_of(mlp_step, mlp_arguments(layers=3, batch=16, width=4))
    recipe = next(recipes.straight_lines(subject))
    return subject, contents_of(recipes.text_of(recipe))


@functools.cache
def loops():
    subject = recipes.subject_of(*scanned_steps.scanned(layers=4))
    recipe = next(recipes.plans_of_loops(subject))
    return subject, contents_of(recipes.text_of(recipe))


def fault(case, change):
    """What is wrong with the document of a plan that was changed."""
    subject, contents = case()
    contents = copy.deepcopy(contents)
    change(contents)
    with pytest.raises(PlanFault) as caught:
        rebuilt(contents, subject)
    return str(caught.value)


def of_part(**values):
    return lambda contents: contents["loops"]["pairs"][0][0]["parts"][0].update(values)


def test_faults_of_straight_lines():
    def other_operation(contents):
        contents["plan"]["operations"][0] = [7]

    def one_less(contents):
        contents["plan"]["operations"].pop()

    def other_order(contents):
        contents["plan"]["schedule"]["steps"].reverse()

    assert "`plan.operations[0]` has the equations [7], and operation 0 of this" in fault(
        straight_line, other_operation
    )
    assert "operations, and this step " in fault(straight_line, one_less)
    assert "`plan.schedule` is no plan of this step: " in fault(straight_line, other_order)


def test_faults_of_branches_that_run_again():
    def flag(value):
        return lambda contents: contents.update(branches_again=value)

    assert fault(straight_line, flag(True)) == (
        "`branches_again` must be false: the step has no branches to run again. Got True"
    )
    assert "`branches_again` must be true or false. Got 1" in fault(straight_line, flag(1))
    subject = recipes.subject_of(branched_step, mlp_arguments(layers=3, batch=16, width=4))
    for recipe in recipes.plans_with_branches_again(subject):
        contents = contents_of(recipes.text_of(recipe))
        assert rebuilt(contents, subject).branches_again is not None
        assert "this step" in fault(lambda c=contents: (subject, c), flag(False))


def test_faults_of_what_is_made_again_inside_of_readers():
    subject = recipes.subject_of(gelu_step, mlp_arguments(layers=3, batch=16, width=4))
    recipe = recipes.inside_readers_of(subject)
    contents = contents_of(recipes.text_of(recipe))
    assert rebuilt(contents, subject).inside == recipe.inside

    def made_again_by(**values):
        return lambda contents: contents["inside_readers"].update(values)

    def case():
        return subject, contents

    kept = contents["inside_readers"]["kept"]
    last = len(subject.program.eqns) - 1
    assert "`inside_readers.after` must be " in fault(case, made_again_by(after=last + 1))
    assert "`inside_readers.kept[0]` must be one of" in fault(
        case, made_again_by(kept=[f"eqn{last}"])
    )
    assert "`inside_readers.kept` must be values that others are made of. Got" in fault(
        case, made_again_by(after=0, kept=[])
    )
    less = made_again_by(kept=kept[1:])  # It is another program, and another graph.
    assert "operation" in fault(case, less)


def test_layers_come_back_from_their_file():
    subject = recipes.subject_of(gelu_step, mlp_arguments(layers=3, batch=16, width=4))
    recipe = recipes.inside_readers_of(subject, layers=(3, 7))
    contents = contents_of(recipes.text_of(recipe))
    assert rebuilt(contents, subject).inside == recipe.inside

    def in_none(contents):
        contents["inside_readers"]["layers"] = [len(subject.program.eqns)]

    assert "`inside_readers.layers[0]` must be " in fault(
        lambda: (subject, contents), in_none
    )


def branched_step(weights, x):
    def loss(weights):
        y = x
        for weight in weights:
            y = jax.lax.cond(y[0, 0] > 0, jax.nn.gelu, jnp.tanh, y @ weight)
        return jnp.mean(y**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def gelu_step(weights, x):
    def loss(weights):
        y = x
        for weight in weights:
            y = y + jax.nn.gelu(y @ weight)
        return jnp.mean(y**2)

    return jax.grad(loss)(weights)


def test_faults_of_loops():
    def other_pair(contents):
        contents["loops"]["pairs"][0][0]["backward"] = 999

    def other_program(contents):
        contents["loops"]["program"] = ""

    def other_body(contents):
        contents["loops"]["bodies"] = [{"path": [0, 0], "line": "", "plan": None}]

    def no_parts(contents):
        contents["loops"]["pairs"][0][0]["parts"] = []

    assert "which are no forward loop and its backward loop" in fault(loops, other_pair)
    assert "Its loops, as this version of JAX and coop_jax writes them, are not" in fault(
        loops, other_program
    )
    assert "is of a loop at [0, 0], which is none" in fault(loops, other_body)
    missing = fault(loops, of_part(kept=[], again=[]))
    assert "`loops.pairs[0][0].parts[0]` neither keeps " in missing
    assert "nor makes it again, and the backward loop needs it" in missing
    assert "and neither keeps that nor makes it again" in fault(loops, of_part(kept=[]))
    assert "must be iterations that follow those before" in fault(loops, of_part(start=1))
    assert "must be parts of all 4 iterations" in fault(loops, no_parts)


EXTREMES = (-(2**63), -1, 0, 2**30, 2**31, 2**60, 2**61, 2**63 - 1)


@pytest.mark.parametrize("case", [straight_line, loops])
def test_no_number_is_too_large_or_too_small_to_be_refused_by_name(case):
    """Powers of two, as an alignment has to be one."""
    subject, contents = case()
    contents = copy.deepcopy(contents)
    one_of_each = {
        kind: (holder, key)
        for kind, holder, key in places(contents)
        if type(holder[key]) is int
    }
    assert len(one_of_each) > 5
    num_refused = 0
    for holder, key in one_of_each.values():
        number = holder[key]
        for holder[key] in EXTREMES:
            try:
                rebuilt(contents, subject)
            except PlanFault:
                num_refused += 1
        holder[key] = number
    assert num_refused > 4 * len(one_of_each)
    assert rebuilt(contents, subject) is not None


def test_values_that_xla_does_not_round_are_not_kept_rounded():
    """As in a plan for a TPU: the second value is read by others than products."""
    subject, _ = straight_line()
    rules = from_rules(subject.program)
    value = subject.program.eqns[1].outvars[0]
    stored = dataclasses.replace(rules, narrowed={value: frozenset()})
    graph = build_graph(subject.program, stored, TARGET)
    check_halved(graph, lambda program: stored)
    with pytest.raises(PlanFault, match="It keeps eqn1 as bfloat16, and XLA keeps it"):
        check_halved(graph, lambda program: rules)
