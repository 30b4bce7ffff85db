"""Values that are gathered for their readers: they take their shard in a plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scale.sharding_styles import convolutional, decoder, sharded

import coop_jax
from coop_jax.backends import backend_of
from coop_jax.compile.as_written import compile_tagged
from coop_jax.compile.traced_step import TracedStep

pytestmark = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
ROWS, INSIDE = 64, 256


def gathered_step(first, second, x):
    """Its hidden values are divided along the axis that the second product sums over; the
    second weights are divided along the other, so that they are gathered for it."""
    hidden = jnp.tanh(x @ first)
    return jnp.sin(hidden @ second), hidden


def arguments():
    mesh = Mesh(np.array(jax.devices()[:4]), ("a",))

    def placed(*shape):
        value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        columns = PartitionSpec(None, "a") if shape[0] != ROWS else PartitionSpec()
        return jax.device_put(value, NamedSharding(mesh, columns))

    return placed(16, INSIDE), placed(INSIDE, 16), placed(ROWS, 16)


def stored_values():
    traced = TracedStep.trace(gathered_step, {}, arguments(), {})
    compiled = compile_tagged(traced)
    stored = backend_of(traced.device()).stored_values(traced.program, compiled)
    return traced.program, stored, compiled


def test_a_gathered_value_takes_its_shard():
    program, stored, compiled = stored_values()
    assert collectives(compiled)["all-gather"]
    [tanh] = [e for e in program.eqns if e.primitive.name == "tanh"]
    [value] = tanh.outvars
    assert stored.bytes_of(value) == ROWS * INSIDE * 4 // 4


def test_the_copies_are_scratch_of_the_reader():
    program, stored, _ = stored_values()
    reader = [i for i, e in enumerate(program.eqns) if e.primitive.name == "dot_general"][1]
    assert stored.workspace_bytes[reader] >= ROWS * INSIDE * 4


SIZES = {
    "decoder": {
        "num_layers": 1,
        "width": 32,
        "num_heads": 2,
        "batch_size": 16,
        "sequence_length": 64,
        "vocab_size": 32,
    },
    "convolutional": {"stage_sizes": (1,), "width": 8, "image_size": 16, "batch_size": 32},
}


def close(state, other):
    """Equal but for roundings, as a whole: some gradients are nothing else."""
    pairs = list(zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True))
    error = sum(float(np.sum((np.asarray(a) - np.asarray(b)) ** 2)) for a, b in pairs)
    assert error <= 1e-8 * sum(float(np.sum(np.asarray(b) ** 2)) for _, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "style"), [("decoder", "last axis"), ("convolutional", "fsdp")]
)
def test_steps_of_a_mesh_are_planned(model, style):
    """With fewer heads than devices, too: it was an internal error of XLA's custom
    partitioner, before fences kept such shardings."""
    sizes = SIZES[model]
    step, args = sharded(model, style, jax.devices()[:4], **sizes)
    as_written = jax.jit(step).lower(*args).compile()
    planned = coop_jax.remat_train_step(step, budget="90%", donate_argnums=0)
    plan = planned.plan(*args)
    assert plan.measured_bytes <= plan.budget_bytes
    assert not plan.is_unmodified
    problem = {"decoder": decoder, "convolutional": convolutional}[model](**sizes)
    placed = jax.tree.map(lambda x: x.sharding, args[0])
    state, other, alone = jax.tree.map(lambda x: x.copy(), args[0]), args[0], problem.state
    for _ in range(3):
        state, loss = planned(state, *args[1:])
        other, expected = as_written(other, *args[1:])
        alone, single = jax.jit(problem.train_step)(alone, problem.batch, problem.key)
        np.testing.assert_allclose([loss, expected], single, rtol=1e-4)
        state, other = jax.device_put((state, other), (placed, placed))
    close(state, other)
    close(state, alone)
