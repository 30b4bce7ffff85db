"""Mixtures: k of L iterations at one choice of what they keep, the others at the next."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from scanned_steps import descent, normal
from steps import NEEDS_CUDA

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.targets import named
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

LAYERS = 8


LOOP_BYTES = 8 << 10  # indices, tuples and the like of one loop more


def gated(w, x):
    a, b, c = (each.astype(jnp.bfloat16) for each in w)
    half = x.astype(jnp.bfloat16)
    return x + (jax.nn.silu(half @ a) * (half @ b)) @ c


def wide(w, x):
    """Its widest value is between products by weights of one shape."""
    a, b, c = (each.astype(jnp.bfloat16) for each in w)
    share = jnp.tanh(x.astype(jnp.bfloat16) @ a @ jnp.tile(b, (1, 16)))
    return x + jnp.sin(share @ jnp.tile(b, (1, 16)).T @ c)


LAYERS_OF = {"gated": gated, "wide": wide}


def step_of(layer):
    def loss(w, x):
        return jnp.mean(lax.scan(lambda x, w: (layer(w, x), None), x, w)[0] ** 2)

    weights = tuple(normal(LAYERS, 256, 256, seed=seed) for seed in range(3))
    return descent(loss, weights, normal(512, 256))


@pytest.mark.parametrize("target", ["cpu", pytest.param("h200", marks=NEEDS_CUDA)])
@pytest.mark.parametrize("name", LAYERS_OF)
def test_a_mixture_saves_what_its_iterations_keep_less(name, target):
    step, args = step_of(LAYERS_OF[name])
    if target != "cpu":
        args = absent_devices.placed(args, absent_devices.named_device(target))
    traced = TracedStep.trace(step, {"donate_argnums": 0}, args, {})
    [choices] = menu_of(traced.program, named(target)).choices

    def total_bytes(planned):
        program = with_planned_pairs(traced.program, [planned])
        return memory_figures(traced.compile(program)).total_bytes

    alike = choices.corners[: len(choices.hull)]
    assert len(alike) > 1
    for corner, (more, less) in enumerate(itertools.pairwise(alike)):
        one_bytes = (more.kept_bytes - less.kept_bytes) // LAYERS
        more_bytes, less_bytes = total_bytes(more), total_bytes(less)
        for count in (2, LAYERS - 2):
            mixed = choices.between(corner, count * one_bytes)
            assert [part.count for part in mixed.parts] == [count, LAYERS - count]
            # Or what all at `less` need, where their peak is elsewhere.
            enough = max(more_bytes - count * one_bytes, less_bytes) + LOOP_BYTES
            assert total_bytes(mixed) <= enough, (corner, count)
