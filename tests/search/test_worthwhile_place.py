"""Loops keep no more than is worth the time that memory takes."""

import jax.numpy as jnp
import pytest
from jax import lax
from scanned_steps import descent, normal
from steps import LITTLE_CODE, QUICK, traced

from coop_jax import backends
from coop_jax.backends.cpu.backend import CpuBackend
from coop_jax.compile.as_written import compile_both
from coop_jax.pipeline import fit_step
from coop_jax.search.worthwhile_place import TimeOfMemory, worthwhile_place
from coop_jax.searches import loop_search_of
from coop_jax.targets import named
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

LAYERS = 12


def silent(line):
    pass


@pytest.fixture(scope="module")
def of_layers():
    weights = normal(LAYERS, 64, 256), normal(LAYERS, 256, 64)

    def loss(weights, x):
        def body(x, w):
            return x + jnp.tanh(x @ w[0]) @ w[1], None

        return jnp.mean(lax.scan(body, x, weights)[0] ** 2)

    step, args = descent(loss, weights, normal(512, 64))
    asked = traced(step, *args, compiler_options=LITTLE_CODE)
    return asked, compile_both(asked)


def with_costly_memory(seconds_per_byte, free_bytes=0):
    """XLA:CPU on a host where a run takes long to have more temporaries than so many."""
    backend = CpuBackend()
    backend.free_temporary_bytes = free_bytes
    backend.seconds_for_temporaries = lambda size: (
        size * seconds_per_byte * (size > free_bytes)
    )
    return backends.registered("cpu", backend)


@pytest.mark.parametrize("share_free", [0, 0.3, 0.8, 2])
@pytest.mark.parametrize("seconds_per_byte", [0.0, 1e-11, 1e-10, 1e-9])
def test_no_place_up_to_the_end_is_cheaper(of_layers, share_free, seconds_per_byte):
    asked, unmodified = of_layers
    total_bytes = unmodified.total_bytes
    stretch = loop_search_of(asked, QUICK, total_bytes, silent).pairs
    fixed_bytes = total_bytes // 10
    free_bytes = int(share_free * (total_bytes - fixed_bytes))

    def seconds_for(size):
        return size * seconds_per_byte if size > free_bytes else 0.0

    memory = TimeOfMemory(seconds_for, free_bytes, fixed_bytes, total_bytes)
    start = stretch.high // 7

    def seconds(place):
        planned = sum(pair.seconds for pair in stretch.menu.saving(place))
        temp_bytes = total_bytes - place - fixed_bytes
        # XLA may need more than expected.
        if free_bytes - free_bytes // 10 < temp_bytes <= free_bytes:
            temp_bytes = free_bytes + 1
        return planned + seconds_for(temp_bytes)

    at = worthwhile_place(stretch, start, total_bytes, memory, 1)
    assert start <= at <= stretch.high
    step = max(1, (stretch.high - start) // 500)
    least = min(map(seconds, range(start, stretch.high + 1, step)))
    # Between two corners the iterations change one by one.
    assert seconds(at) <= least * (1 + 1 / (10 * LAYERS))
    if not seconds_per_byte:
        assert at == start
        assert not memory.matters


@pytest.mark.parametrize("percent", [90, 60])
def test_a_plan_is_as_fast_as_all_others_with_fewer_bytes(
    of_layers, percent, compilations_by_xla
):
    """By the executables, with memory's time, of all places of the path."""
    asked, unmodified = of_layers
    target = named("cpu")
    budget = unmodified.total_bytes * percent // 100
    ample = fit_step(asked, budget, QUICK, silent, unmodified).plan
    num_ample = len(compilations_by_xla)
    seconds_per_byte = 3e-9

    def seconds(compiled):
        temp_bytes = memory_figures(compiled).temp_bytes
        return executable_seconds(compiled, target) + temp_bytes * seconds_per_byte

    with with_costly_memory(seconds_per_byte):
        found = fit_step(asked, budget, QUICK, silent, unmodified)
        num_found = len(compilations_by_xla) - num_ample
        assert found.plan.measured_bytes < ample.measured_bytes
        # Nothing is compiled for the bytes that are not worth it.
        assert num_found <= num_ample
        stretch = loop_search_of(asked, QUICK, unmodified.total_bytes, silent).pairs
        others = [
            asked.compile(stretch.plan(place)[0].program)
            for place in stretch.menu.corner_places
        ]
    assert seconds(found.compiled) <= 1.02 * min(map(seconds, others))


def test_loops_keep_as_much_as_takes_no_time(of_layers):
    """Less than the budget, and more than the least: some iterations keep more."""
    asked, unmodified = of_layers
    as_written = memory_figures(unmodified.compiled).temp_bytes
    budget = unmodified.total_bytes * 95 // 100
    free_bytes = as_written * 45 // 100
    with with_costly_memory(1e-8, free_bytes):
        planned = fit_step(asked, budget, QUICK, silent, unmodified)
    assert 0.8 * free_bytes < memory_figures(planned.compiled).temp_bytes <= free_bytes


def test_where_xla_needs_more_than_expected_less_is_kept(of_layers):
    """The figure of the first plan shows it, and a second is compiled."""
    asked, unmodified = of_layers
    total_bytes = unmodified.total_bytes
    free_bytes = memory_figures(unmodified.compiled).temp_bytes * 45 // 100
    with with_costly_memory(1e-8, free_bytes):
        search = loop_search_of(asked, QUICK, total_bytes, silent)
        search._rest_bytes -= free_bytes // 4  # More than the margin.
        found = search.best(total_bytes * 95 // 100)
    assert memory_figures(found.compiled).temp_bytes <= free_bytes
    assert search.num_compilations == 2
