"""Random bits are one value, in the program and in memory."""

import functools

import pytest
from models import transformer_problem
from steps import LITTLE_CODE, assert_trees_equal, compiled_graph, run, traced

from coop_jax import backends
from coop_jax.emit.rewrite import rewrite
from coop_jax.emit.segments import cut
from coop_jax.plan.planner import PlanOptions, unconstrained
from coop_jax.xla.memory_figures import memory_figures

MASK_BYTES = 4 * 32 * 64 * 4  # The smallest ones.


@functools.cache
def dropout_step(num_layers):
    """Masks of a batch of 4 sequences of 32 tokens at 64 features, or of 4 heads."""
    problem = transformer_problem(
        num_layers=num_layers, width=64, num_heads=4, batch_size=4, sequence_length=32
    )
    arguments = problem.state, problem.batch, problem.key
    options = {"donate_argnums": 0, "compiler_options": LITTLE_CODE}
    return traced(problem.train_step, *arguments, **options), arguments


def num_masks(num_layers):
    return 1 + 3 * num_layers


def hints(step, platform):
    return backends.named(platform).fence_hints(step.program, None)


def planned(step, platform):
    """Without recomputation, the bits fenced as they are on a platform."""
    graph = compiled_graph(step)
    segments = cut(graph, unconstrained(graph, PlanOptions()), fence_free_inputs=False)
    return rewrite(graph, segments, hints(step, platform))


@pytest.mark.slow
def test_xla_keeps_one_value_for_every_mask():
    step, _ = dropout_step(num_layers=2)
    halves, whole = (
        memory_figures(step.compile(planned(step, platform))).temp_bytes
        for platform in ("none", "cpu")
    )
    # Not of those that are read for the last time before most is alive.
    assert halves - whole > num_masks(2) // 2 * MASK_BYTES


@pytest.mark.slow
def test_the_values_are_the_same():
    step, arguments = dropout_step(num_layers=1)
    assert len(hints(step, "cpu").fenced_alone) == num_masks(1)
    assert_trees_equal(run(planned(step, "cpu"), arguments), run(step.program, arguments))


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_elsewhere_the_cipher_is_no_loop(platform):
    step, _ = dropout_step(num_layers=1)
    assert hints(step, platform).fenced_alone == frozenset()
