"""Plans of steps on meshes send nothing that the step as written, or a policy, does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives import collectives
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scanned_steps import normal

from coop_jax import remat_train_step
from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.targets import target_of
from coop_jax.xla.memory_figures import memory_figures

LAYERS, WIDTH, HEADS, WORDS, LENGTH, BATCH = 4, 32, 4, 64, 32, 8
needs_four_devices = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs four devices")
# `jax.checkpoint` works on XLA:CPU where this pass is off.
OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}


def normed(x, scale):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def block(x, w):
    parts = jnp.split(normed(x, w["scale"]) @ w["qkv"], 3, -1)
    q, k, v = (a.reshape(*a.shape[:2], HEADS, -1).swapaxes(1, 2) for a in parts)
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    shares = jax.nn.softmax(jnp.where(mask, q @ k.swapaxes(2, 3), -1e9), -1)
    x = x + (shares @ v).swapaxes(1, 2).reshape(x.shape) @ w["o"]
    return x + jax.nn.gelu(normed(x, w["scale2"]) @ w["up"]) @ w["down"]


def decoder(wrap):
    def loss(w, words):
        x, body = w["words"][words], wrap(block)
        x, _ = jax.lax.scan(lambda x, w: (body(x, w), None), x, w["layers"])
        logits = normed(x, w["last"]) @ w["words"].T
        return -jax.nn.log_softmax(logits)[..., 0].mean()

    def step(w, words):
        value, grads = jax.value_and_grad(loss)(w, words)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), value

    return step


# By name: the axes of the mesh; the axes that weights, by their axes, are divided over.
LAST = {"qkv": (None, None, "a"), "o": (None, None, "a"), "words": (None, "a")}
LAST |= {"up": (None, None, "a"), "down": (None, None, "a"), "scale": (None, "a")}
FSDP = {"qkv": (None, "a"), "o": (None, "a"), "words": ("a",)}
FSDP |= {"up": (None, "a"), "down": (None, "a")}
BOTH = {"qkv": (None, "a", "b"), "o": (None, "b", "a"), "words": ("b", "a")}
BOTH |= {"up": (None, "a", "b"), "down": (None, "b", "a")}
TENSOR = {"qkv": (None, None, "b"), "o": (None, "b"), "words": ()}
TENSOR |= {"up": (None, None, "b"), "down": (None, "b")}
STYLES = {
    "data": ((4, 1), {}),
    "last axis": ((4, 1), LAST),
    "fsdp": ((4, 1), FSDP),
    "tensor": ((2, 2), TENSOR),
    "both": ((2, 2), BOTH),
}


def arguments(style):
    axes, divided = STYLES[style]
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(axes), ("a", "b"))

    def placed(name, value):
        spec = PartitionSpec(*divided.get(name, ()))
        return jax.device_put(value, NamedSharding(mesh, spec))

    layers = {
        "qkv": normal(LAYERS, WIDTH, 3 * WIDTH),
        "o": normal(LAYERS, WIDTH, WIDTH),
        "up": normal(LAYERS, WIDTH, 4 * WIDTH),
        "down": normal(LAYERS, 4 * WIDTH, WIDTH),
        "scale": 1 + normal(LAYERS, WIDTH),
        "scale2": 1 + normal(LAYERS, WIDTH),
    }
    weights = {
        "layers": {name: placed(name, value) for name, value in layers.items()},
        "words": placed("words", normal(WORDS, WIDTH)),
        "last": placed("last", 1 + normal(WIDTH)),
    }
    words = np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH) % WORDS
    return weights, jax.device_put(words, NamedSharding(mesh, PartitionSpec("a")))


def compiled_by_jax(step, args):
    return jax.jit(step).lower(*args).compile(compiler_options=OPTIONS)


def equal(compiled, others, args):
    for got, wanted in zip(
        jax.tree.leaves(compiled(*args)), jax.tree.leaves(others(*args)), strict=True
    ):
        assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@needs_four_devices
@pytest.mark.parametrize(
    "style",
    [
        pytest.param(style, marks=() if style == "both" else pytest.mark.slow)
        for style in STYLES
    ],
)
def test_loops_are_sent_no_more_than_those_of_a_policy(style):
    """Those that keep what is carried alone, against `jax.checkpoint`."""
    args = arguments(style)
    policy = compiled_by_jax(decoder(jax.checkpoint), args)
    traced = TracedStep.trace(decoder(lambda body: body), {}, args, {})
    program = with_broadcasts_inside(traced.program)
    menu = menu_of(program, target_of(traced.device()))
    (_, most_saved_bytes), *_ = menu.stretches
    compiled = traced.compile(with_planned_pairs(program, menu.saving(most_saved_bytes)))
    needed = memory_figures(policy).total_bytes
    assert memory_figures(compiled).total_bytes <= needed
    assert collectives(compiled) <= collectives(policy)
    equal(compiled, policy, args)


@needs_four_devices
@pytest.mark.slow
def test_a_policys_bytes_are_a_budget_and_its_collectives_enough():
    args = arguments("fsdp")
    as_written = compiled_by_jax(decoder(lambda body: body), args)
    policy = compiled_by_jax(decoder(jax.checkpoint), args)
    budget = memory_figures(policy).total_bytes
    planned = remat_train_step(decoder(lambda body: body), budget=budget)
    compiled = planned.lower(*args).compile()
    assert memory_figures(compiled).total_bytes <= budget
    assert collectives(compiled) <= collectives(policy)
    equal(compiled, as_written, args)
