"""Layers again: whole layers run again as under `jax.checkpoint`, on any program."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emit.layered_steps import LAYERS, residual_arguments, residual_step
from random_programs import random_function, random_materialization
from steps import (
    TARGET,
    assert_trees_equal,
    mlp_arguments,
    run,
    traced,
)

from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import (
    InsideReaders,
    made_again,
    with_inside_readers,
    written,
)
from coop_jax.emit.layers_again import Layers
from coop_jax.emit.retention_cut import minimum_cut
from coop_jax.graph.stored_values import from_rules
from coop_jax.trace.program import reads, writes
from coop_jax.trace.purity import may_run_again


def random_case(seed, length=60):
    function, args = random_function(seed, length)
    step = traced(function, *args)
    return step.program, random_materialization(step.program, seed, 0.5), args


def names(program, indices):
    return [program.eqns[index].primitive.name for index in indices]


@pytest.mark.parametrize("seed", range(20))
def test_any_layers_and_any_values_give_the_same_results(seed):
    """A plan file may name any."""
    program, _, args = random_case(seed)
    choose = np.random.default_rng(seed)
    after = int(choose.integers(1, len(program.eqns)))
    layers = tuple(sorted({int(choose.integers(after + 1)) for _ in range(3)}))
    early = [v for eqn in program.eqns[: layers[-1] + 1] for v in writes(eqn)]
    kept = tuple(v for v in early if choose.random() < 0.4)
    rewritten = with_inside_readers(program, InsideReaders(after, kept, layers))
    with jax.disable_jit():
        assert_trees_equal(run(rewritten, args), run(program, args))


def test_no_choice_costs_less_than_the_cut():
    """By all sets of the values, where there are few of them."""
    num_tried = 0
    for seed in range(120):
        program, stored, _ = random_case(seed, 12)
        after = len(program.eqns) // 2
        early = [v for eqn in program.eqns[: after + 1] for v in writes(eqn)]
        choose = np.random.default_rng(seed)
        prices = choose.integers(1, 500, after + 1).tolist()
        if len(early) > 10:
            continue
        num_tried += 1

        def cost(kept, *, of=(program, stored, after, prices)):
            program, stored, after, prices = of
            inside = InsideReaders(after, tuple(kept), (after,))
            again = made_again(program, inside)
            makers = {v: i for i in range(after + 1) for v in writes(program.eqns[i])}
            late = {v for eqn in program.eqns[after + 1 :] for v in reads(eqn)}
            missing = [v for v in late if v in makers and makers[v] not in again]
            if any(v not in kept and v not in program.outvars for v in missing):
                return math.inf
            kept_bytes = (stored.bytes_of(v) for v in kept if v not in program.outvars)
            return sum(kept_bytes) + sum(prices[i] for i in again)

        def price(index, *, of=(program, prices)):
            program, prices = of
            return prices[index] if may_run_again(program.eqns[index]) else math.inf

        found = minimum_cut(program, stored, after, price)
        least = min(
            cost(set(chosen))
            for count in range(len(early) + 1)
            for chosen in itertools.combinations(early, count)
        )
        # One more for each equation and value: edges are rounded up.
        assert cost(set(found)) <= least + 2 * len(early) + 2
    assert num_tried > 5


@pytest.mark.parametrize("of_the_last", [True, False])
def test_what_passes_boundaries_are_the_residuals_of_layers(of_the_last):
    step = traced(residual_step, *residual_arguments())
    program = step.program
    layers = Layers(program, from_rules(program), TARGET)
    boundaries = layers.blocks()
    assert len(boundaries) == LAYERS
    # What leaves the last one as written begins its second half before it.
    boundaries = boundaries if of_the_last else boundaries[:-1]
    passing = layers.passing(boundaries)
    assert [v.aval.shape for v in passing] == [(4096, 256)] * len(boundaries)
    inside = layers.kept(boundaries, lambda index: 1e-3)
    again = names(program, made_again(program, inside))
    # The second product of a layer is only added to what passes.
    assert again.count("dot_general") == len(boundaries)
    dear = layers.kept(boundaries, lambda index: 1e30)
    assert "dot_general" not in names(program, made_again(program, dear))
    assert layers.seconds(inside) > layers.seconds(dear)
    assert layers.live_bytes(inside) < layers.live_bytes(dear)


def test_a_layer_runs_again_in_one_stretch_behind_its_fence():
    """Arguments pass it, too: what is made of them alone would be merged otherwise."""
    step = traced(residual_step, *residual_arguments())
    program = step.program
    layers = Layers(program, from_rules(program), TARGET)
    boundaries = layers.blocks()
    inside = layers.kept(boundaries, lambda index: 1e-3)
    writer = written(program, inside)
    fences = [eqn for eqn in writer.eqns if eqn.primitive is fence_p]
    assert len(fences) == LAYERS
    passed = {v for eqn in fences for v in reads(eqn)}
    assert set(program.invars[: 2 * LAYERS]) <= passed
    casts = [
        eqn
        for eqn in writer.eqns[inside.end + 1 :]
        if eqn.primitive.name == "convert_element_type"
        and writer.origin.get(eqn.outvars[0]) is not None
    ]
    assert casts
    assert all(v not in program.invars for eqn in casts for v in reads(eqn))


def masked_step(weights, batch):
    """Of the first layer: a mask that all layers read; of all layers: the loss."""

    def loss(weights):
        tokens, targets = batch[:, :-1], batch[:, 1:]
        y = jnp.take(weights[0], tokens, axis=0)
        is_token = tokens > 0
        added = []
        for first, second in weights[1:]:
            y = jnp.where(is_token[..., None], y, 0.0)
            wide = jnp.where(y @ first > 0.0, y @ first, -1.0)
            added.append(jnp.mean(jnp.max(wide, axis=-1)))
            y = y + wide @ second
        logits = jax.nn.log_softmax(y @ weights[0].T)
        picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)
        return -jnp.mean(picked) + 0.1 * sum(added)

    return jax.value_and_grad(loss)(weights)


def masked_arguments():
    pair = tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((32, 64), (64, 32)))
    embedding = jax.ShapeDtypeStruct((512, 32), "float32")
    return [embedding, *[pair] * LAYERS], jax.ShapeDtypeStruct((16, 65), "int32")


def conditioned_step(weights, time, x):
    """What all layers and the head make of the time is made in the first layer, where the
    way back of the head reads its derivative."""

    def loss(weights):
        y, when = x, time @ weights[0][1]
        for first, second in weights:
            wide = y @ first * (jax.nn.silu(when) @ first)[:, None]
            y = y + jnp.sin(wide) @ second
        return jnp.mean((y * (jax.nn.silu(when) @ weights[1][1])[:, None]) ** 2)

    return jax.value_and_grad(loss)(weights)


def conditioned_arguments():
    pair = tuple(jax.ShapeDtypeStruct((32, 32), "float32") for _ in range(2))
    time, x = (jax.ShapeDtypeStruct(s, "float32") for s in ((16, 32), (16, 64, 32)))
    return [pair] * LAYERS, time, x


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(masked_step, masked_arguments), (conditioned_step, conditioned_arguments)],
)
def test_no_layer_begins_because_of_what_is_not_of_it_alone(function, arguments):
    """Masks, targets, equal constants, what layers add to the loss, and what the first one
    makes for the head: each layer begins when the way back has come to it."""
    program = traced(function, *arguments()).program
    layers = Layers(program, from_rules(program), TARGET)
    boundaries = layers.blocks()
    assert len(boundaries) == LAYERS
    inside = layers.kept(boundaries, lambda index: 1e-9)
    writer = written(program, inside)
    fences = [at for at, eqn in enumerate(writer.eqns) if eqn.primitive is fence_p]
    products = [
        [eqn.outvars[0] in writer.origin for eqn in part if is_product_of_tokens(eqn)]
        for part in itertools.starmap(
            lambda begin, end: writer.eqns[begin:end],
            itertools.pairwise([*fences, len(writer.eqns)]),
        )
    ]
    begins = [made for made in products if any(made)]
    assert len(begins) == len(boundaries)
    # Of each its first product runs again, and two are on its way back; the batch of the
    # step may have no gradient.
    assert all(made.count(True) == 1 for made in begins)
    *others, first = (made.count(False) for made in begins)
    assert min(others) >= 2
    assert first >= 1


def two_stacks(weights, x, positions):
    """An encoder and a decoder, of other layers, and a bias that is added in all."""
    encoder, decoder = weights
    bias = jnp.broadcast_to(jnp.sin(positions @ positions.T), (16, 64, 64))

    def loss(weights):
        encoder, decoder = weights
        y = x
        for weight in encoder:
            y = y + jnp.tanh(bias @ y) @ weight
        z = jnp.cos(x)
        for first, second in decoder:
            z = z + jax.nn.relu(bias @ (z @ first)) @ second + y
        return jnp.mean(z**2)

    return jax.value_and_grad(loss)((encoder, decoder))


def test_layers_of_all_stacks_and_what_is_broadcast_for_them():
    square = jax.ShapeDtypeStruct((32, 32), "float32")
    args = (
        ([square] * LAYERS, [(square, square)] * LAYERS),
        jax.ShapeDtypeStruct((16, 64, 32), "float32"),
        jax.ShapeDtypeStruct((64, 8), "float32"),
    )
    program = traced(two_stacks, *args).program
    layers = Layers(program, from_rules(program), TARGET)
    boundaries = layers.blocks()
    assert len(boundaries) >= 2 * LAYERS - 2
    passing = layers.passing(boundaries)
    assert all(v.aval.shape != (16, 64, 64) for v in passing)
    assert any(v.aval.shape == (64, 64) for v in passing)
    inside = layers.kept(boundaries, lambda index: 1e-9)
    with jax.disable_jit():
        operands = [jnp.ones(v.aval.shape, v.aval.dtype) / 8 for v in program.invars]
        rewritten = with_inside_readers(program, inside)
        assert_trees_equal(run(rewritten, operands), run(program, operands))


def test_products_side_by_side_are_no_layers():
    def step(weights, x):
        return jax.grad(lambda w: sum(jnp.sum((x @ one) ** 2) for one in w))(weights)

    weights = [jax.ShapeDtypeStruct((32, 32), "float32")] * LAYERS
    program = traced(step, weights, jax.ShapeDtypeStruct((64, 32), "float32")).program
    assert Layers(program, from_rules(program), TARGET).blocks() == ()


def is_product_of_tokens(eqn):
    return is_product(eqn) and eqn.outvars[0].aval.ndim == 3


def is_product(eqn):
    return eqn.primitive.name == "dot_general"


def test_nothing_is_made_again_before_the_way_back():
    """What a reader has of constants alone is no value of the way back."""

    def step(weights, x):
        def loss(weights):
            y = x
            for weight in weights:
                y = jnp.sort(jnp.tanh(y @ weight), axis=-1)
            return jnp.mean(y**2)

        return jax.grad(loss)(weights)

    program = traced(step, *mlp_arguments(layers=LAYERS)).program
    layers = Layers(program, from_rules(program), TARGET)
    boundaries = layers.blocks()
    inside = layers.kept(boundaries, lambda index: 1e-3)
    rewritten = with_inside_readers(program, inside)
    depends = set(inside.kept)
    for eqn in rewritten.eqns:
        if eqn.primitive is fence_p:
            assert any(v in depends for v in reads(eqn)[-1:]), "the last is of the way back"
        if any(v in depends for v in reads(eqn)):
            depends.update(writes(eqn))
