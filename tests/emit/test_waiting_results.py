"""Waiting results: gradients of weights are there before a layer runs again."""

import dataclasses

import jax
import jax.numpy as jnp
from steps import traced

from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import with_inside_readers
from coop_jax.emit.layers_again import Layers
from coop_jax.emit.waiting_results import WaitingResults
from coop_jax.graph.stored_values import from_rules
from coop_jax.targets import named
from coop_jax.trace.program import reads, writes

LAYERS, WIDTH, TOKENS, WORDS = 4, 512, 4096, 16384


def decoder_step(parameters, x, labels, remat=lambda layer: layer):
    """Gated MLPs and logits of many words; all gradients are scaled by their norm."""

    def layer(y, weights):
        gate, up, down = (w.astype(jnp.bfloat16) for w in weights)
        return y + (jax.nn.silu(y @ gate) * (y @ up)) @ down

    def loss(parameters):
        layers, head = parameters
        y = x
        for weights in layers:
            y = remat(layer)(y, weights)
        logits = (y @ head.astype(jnp.bfloat16)).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -jnp.mean(picked)

    gradients = jax.grad(loss)(parameters)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda w, g: w - 0.1 * g / norm, parameters, gradients)


def arguments():
    wide = jax.ShapeDtypeStruct((WIDTH, 4 * WIDTH), "float32")
    back = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), "float32")
    head = jax.ShapeDtypeStruct((WIDTH, WORDS), "float32")
    x = jax.ShapeDtypeStruct((TOKENS, WIDTH), "bfloat16")
    labels = jax.ShapeDtypeStruct((TOKENS,), "int32")
    return ([(wide, wide, back)] * LAYERS, head), x, labels


def all_again(step, target, stored, *, waits=True):
    """The program with what passes between the layers kept, and the layers found."""
    layers = Layers(step.program, stored, target)
    boundaries = layers.blocks()
    inside = layers.kept(boundaries, lambda index: 1e-30)
    waiting = dataclasses.replace(inside, waits=waits)
    return with_inside_readers(step.program, waiting), boundaries


def test_fences_wait_for_the_gradients_of_weights_as_the_optimizer_reads_them():
    step = traced(decoder_step, *arguments(), donate_argnums=0)
    program, boundaries = all_again(step, named("h200"), from_rules(step.program))
    assert len(boundaries) >= LAYERS - 1
    fences = [eqn for eqn in program.eqns if eqn.primitive is fence_p]
    made = {v for eqn in program.eqns for v in writes(eqn)}
    shapes = [[v.aval.shape for v in reads(eqn) if v in made] for eqn in fences]
    first, *others = (some for some in shapes if (4 * WIDTH, WIDTH) in some)
    assert (WIDTH, WORDS) in first
    assert len(others) == LAYERS - 2
    for some in (first, *others):
        assert some.count((WIDTH, 4 * WIDTH)) == 2
        assert some.count((4 * WIDTH, WIDTH)) == 1
    # Each waits once.
    assert sum(some.count((WIDTH, WORDS)) for some in shapes) == 1


def test_without_being_asked_none_waits():
    step = traced(decoder_step, *arguments(), donate_argnums=0)
    program, _ = all_again(step, named("h200"), from_rules(step.program), waits=False)
    made = {v for eqn in program.eqns for v in writes(eqn)}
    passed = [v for e in program.eqns if e.primitive is fence_p for v in reads(e)]
    assert not [v for v in passed if v in made and v.aval.shape[0] != TOKENS]


def test_what_the_way_back_is_made_of_does_not_wait_twice():
    step = traced(decoder_step, *arguments(), donate_argnums=0)
    eqns = step.program.eqns
    waiting = WaitingResults(eqns)
    for index in range(len(eqns)):
        waiting.advance(index)
    everything = step.program.outvars
    assert waiting.before(len(eqns), everything) == []
    assert waiting.before(len(eqns), ()) == []  # All were asked for once.
