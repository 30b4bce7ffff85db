"""A backend is one class and one registration: CONTRIBUTING, "Add a backend"."""

import jax
import pytest
from steps import mlp_arguments, mlp_step

import coop_jax
from coop_jax import backends
from coop_jax.backends.backend import Backend
from coop_jax.backends.cpu.backend import CpuBackend


class Cautious(CpuBackend):
    """Expects XLA to need a twentieth more than the schedule says."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def expected_bytes(self, graph, schedule, options):
        self.asked += 1
        return super().expected_bytes(graph, schedule, options) * 21 // 20


def test_one_class_and_one_registration_add_a_backend(monkeypatch):
    cautious = Cautious()
    monkeypatch.setitem(backends._BACKENDS, "cpu", cautious)
    step = coop_jax.remat_train_step(
        mlp_step, budget="70%", planner="lookahead", donate_argnums=0
    )
    plan = step.plan(*mlp_arguments())
    assert cautious.asked
    assert plan.measured_bytes <= plan.budget_bytes
    assert plan.recomputed_flops > 0


@pytest.mark.parametrize("platform", ["cpu", "gpu", "cuda", "rocm", "tpu", "none of these"])
def test_every_platform_has_a_backend(platform):
    backend = backends.named(platform)
    assert isinstance(backend, Backend)
    assert (type(backend) is Backend) == (platform == "none of these")


def test_the_backend_of_a_device_is_that_of_its_platform():
    [device, *_] = jax.devices("cpu")
    assert backends.backend_of(device) is backends.named("cpu")
