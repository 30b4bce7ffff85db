"""The way back: a layer's is behind its fence, so that nothing of it is left to the end."""

import jax
import jax.numpy as jnp
from models import transformer_problem
from steps import NEEDS_CUDA, TARGET, traced

from coop_jax.compile.as_written import compile_tagged
from coop_jax.emit.fence import fence_p
from coop_jax.emit.inside_readers import with_inside_readers
from coop_jax.emit.layers_again import Layers
from coop_jax.graph.stored_values import from_rules
from coop_jax.targets import target_of
from coop_jax.trace.program import reads
from coop_jax.xla.absent_devices import named_device, placed
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, TOKENS, WORDS = 4, 512, 4096, 16384


def decoder_step(parameters, x, labels):
    """Gated MLPs and logits of many words; all gradients are scaled by their norm."""

    def layer(y, weights):
        gate, up, down = (w.astype(jnp.bfloat16) for w in weights)
        return y + (jax.nn.silu(y @ gate) * (y @ up)) @ down

    def loss(parameters):
        layers, head = parameters
        y = x
        for weights in layers:
            y = layer(y, weights)
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


@NEEDS_CUDA
def test_gradients_of_weights_are_not_left_to_the_end():
    """Nor is what they are made of kept until then, which was most of what layers free."""
    problem = transformer_problem(num_layers=4, batch_size=8, sequence_length=128)
    given = problem.state, problem.batch, problem.key
    args = placed(jax.eval_shape(lambda *args: args, *given), named_device("h200"))
    step = traced(problem.train_step, *args, donate_argnums=0)
    tagged = compile_tagged(step)
    stored = step.backend.stored_values(step.program, tagged)
    program, _ = all_again(step, target_of(step.device()), stored)
    needed, whole = (
        memory_figures(one).total_bytes for one in (step.compile(program), tagged)
    )
    assert needed < whole / 2
