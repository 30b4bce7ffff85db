"""The values that stay in VMEM, against rules that are checked by themselves."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from steps import TARGET, compiled_graph, mlp_arguments, mlp_step, traced

from coop_jax.backends.tpu.vmem import NearMemory, far_spans
from coop_jax.graph.step_graph import build_graph
from coop_jax.graph.stored_values import from_rules
from coop_jax.plan.live_ranges import lifetimes
from coop_jax.plan.planner import plan_pool, planner_options, unconstrained

OPTIONS = planner_options("search", 64)


def with_near(graph, near_bytes):
    target = dataclasses.replace(graph.target, near_bytes=near_bytes)
    return dataclasses.replace(graph, target=target)


@pytest.fixture(scope="module")
def graph():
    return compiled_graph(traced(mlp_step, *mlp_arguments(), donate_argnums=0))


@pytest.fixture(scope="module")
def plans(graph):
    whole = unconstrained(graph, OPTIONS)
    most = whole.statistics.max_live_bytes
    return [whole, *(plan_pool(graph, int(p * most), OPTIONS) for p in (0.7, 0.5))]


def test_without_near_memory_everything_is_far(graph, plans):
    for schedule in plans:
        lives = lifetimes(graph, schedule)
        spans = far_spans(graph, lives, NearMemory(1.0, 1e9))
        assert spans == [(v.first, v.last) for v in lives.versions]


def test_with_much_of_it_only_what_waits_for_long_is(graph, plans):
    large = with_near(graph, 1 << 40)
    for schedule in plans:
        lives = lifetimes(large, schedule)
        assert not any(far_spans(large, lives, NearMemory(1.0, 1e9)))
        # Not even one that is read at once waits less than no time.
        assert all(far_spans(large, lives, NearMemory(1.0, -1.0)))


@pytest.mark.parametrize("room", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("most_copies", [0.5, 5.0, 50.0])
def test_it_is_never_overfull_and_nothing_stays_for_longer(graph, plans, room, most_copies):
    """Of what is not far for all of its life, added up by itself."""
    near = NearMemory(room, most_copies)
    whole = unconstrained(graph, OPTIONS).statistics.max_live_bytes
    limited = with_near(graph, whole)
    kinds = set()
    for schedule in plans:
        lives = lifetimes(limited, schedule)
        seconds = [graph.core.op_seconds[k] for k in lives.operation]
        used = np.zeros(len(seconds), np.int64)
        for version, span in zip(
            lives.versions, far_spans(limited, lives, near), strict=True
        ):
            size = graph.in_pool_bytes[version.tensor]
            kinds.add(span and (span == (version.first, version.last)))
            if span is None:
                used[version.first : version.last + 1] += size
                uses = [u for u in version.uses if u < version.last] + [version.last]
                waits = (sum(seconds[a + 1 : b]) for a, b in itertools.pairwise(uses))
                copy = size / TARGET.bytes_per_second
                assert max(waits, default=0) <= most_copies * copy * 1.0001
            else:
                assert span[0] in (version.first, version.first + 1)
                assert version.first <= span[0] <= span[1] <= version.last
        assert used.max() <= room * whole
    assert None in kinds
    assert kinds != {None}


def waiting_step(x, y, tiny):
    """A large and a small value wait for the same."""
    large, small = x @ y, x[:2] @ y
    for _ in range(6):
        tiny = tiny @ tiny
    return large @ y * tiny[0, 0], small @ y * tiny[0, 0]


def test_small_values_come_first():
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    step = traced(waiting_step, array(256, 256), array(256, 256), array(8, 8))
    graph = build_graph(step.program, from_rules(step.program), TARGET)
    large, small = 256 * 256 * 4, 2 * 256 * 4

    def sizes_near(room):
        limited = with_near(graph, room)
        lives = lifetimes(limited, unconstrained(limited, OPTIONS))
        spans = far_spans(limited, lives, NearMemory(1.0, 1e9))
        return {
            limited.in_pool_bytes[v.tensor]
            for v, span in zip(lives.versions, spans, strict=True)
            if span is None
        }

    assert {large, small} <= sizes_near(2 * large)
    # Room for either, and not for both.
    near = sizes_near(large)
    assert small in near
    assert large not in near
