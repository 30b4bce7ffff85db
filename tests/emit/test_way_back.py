"""The way back: a layer's is behind its fence, so that nothing of it is left to the end."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_CUDA, NEEDS_TPU, TARGET, traced

from coop_jax.compile.as_written import compile_tagged
from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import with_inside_readers
from coop_jax.emit.layers_again import Layers
from coop_jax.graph.stored_values import from_rules
from coop_jax.targets import target_of
from coop_jax.trace.program import reads
from coop_jax.xla.absent_devices import named_device, placed
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

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


def all_again(step, target, stored):
    """The program with what passes between the layers kept, and the layers found."""
    layers = Layers(step.program, stored, target)
    boundaries = layers.blocks()
    inside = layers.kept(boundaries, lambda index: 1e-30)
    return with_inside_readers(step.program, inside), boundaries


def test_what_passed_a_fence_is_read_behind_it_only():
    """The gradient of what a layer makes, too."""
    step = traced(decoder_step, *arguments(), donate_argnums=0)
    program, boundaries = all_again(step, TARGET, from_rules(step.program))
    assert len(boundaries) >= LAYERS - 1
    at = [i for i, eqn in enumerate(program.eqns) if eqn.primitive is fence_p]
    assert len(at) >= LAYERS - 1
    made = {v: i for i, eqn in enumerate(program.eqns) for v in eqn.outvars}
    for fence in at:
        passed = set(reads(program.eqns[fence]))
        assert any(made.get(v, 0) > max(boundaries) for v in passed), "of the way back"
        later = {v for eqn in program.eqns[fence + 1 :] for v in reads(eqn)}
        assert not passed & later


@pytest.mark.parametrize(
    "name",
    [pytest.param("h200", marks=NEEDS_CUDA), pytest.param("tpu v5e", marks=NEEDS_TPU)],
)
def test_gradients_of_weights_are_not_left_to_the_end(name):
    """Nor is what they are made of kept until then: no layer needs more than by hand."""
    args = placed(arguments(), named_device(name))
    step = traced(decoder_step, *args, donate_argnums=0)
    target = target_of(step.device())
    stored = step.backend.stored_values(step.program, compile_tagged(step))
    program, _ = all_again(step, target, stored)
    ours = step.compile(program)
    policy = jax.jit(
        lambda *args: decoder_step(*args, remat=jax.checkpoint), donate_argnums=0
    )
    theirs = step.compile_lowered(policy.lower(*args))
    # The last layer does not run again: three values of its inside, and its weights.
    of_a_layer = 3 * (TOKENS + WIDTH) * 4 * WIDTH * 2
    needed, allowed = (memory_figures(one).total_bytes for one in (ours, theirs))
    assert needed <= allowed + of_a_layer
    seconds = [executable_seconds(one, target) for one in (ours, theirs)]
    assert seconds[0] <= 1.01 * seconds[1]
