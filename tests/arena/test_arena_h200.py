"""An arena on a GPU that need not be there: what XLA makes of the exchanges."""

import re

import pytest
from steps import NEEDS_CUDA, mlp_arguments, mlp_step, traced

from coop_jax import _ext
from coop_jax.pipeline import Placing, compile_both, fit_step, placed_otherwise
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

pytestmark = [
    NEEDS_CUDA,
    pytest.mark.skipif(not _ext.has_cuda, reason="built without CUDA"),
    pytest.mark.usefixtures("copies_cost_nothing"),
]


@pytest.fixture
def step():
    device = absent_devices.named_device("h200")
    arguments = mlp_arguments(layers=8, batch=4096, width=256)
    return traced(mlp_step, *absent_devices.placed(arguments, device), donate_argnums=0)


def test_the_arena_is_never_copied_and_costs_no_memory(step):
    unmodified = compile_both(step)
    fitted = fit_step(step, "60%", "search", lambda line: None, unmodified)
    compiled, arena = placed_otherwise(step, fitted, Placing("arena"))
    figures = memory_figures(compiled)
    assert arena.stays
    assert figures.alias_bytes >= arena.arena_bytes
    assert figures.total_bytes <= 1.1 * fitted.plan.measured_bytes
    text = compiled.as_text()
    calls = re.findall(r'custom_call_target="coop_exchange"', text)
    boundaries = {s.stored_at for s in arena.stays} | {s.loaded_at for s in arena.stays}
    assert len(calls) == len(boundaries)
    assert not re.search(rf"u8\[{arena.arena_bytes}\]\S* copy", text)
