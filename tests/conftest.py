"""Test environment: XLA:CPU with four host devices, deterministic hypothesis."""

import os

# Before jax is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# XLA generates slower code in half of the time, of the same buffers. `false` in the
# environment for the code that users run.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

import hypothesis
import jax
import jaxlib
import pytest

from coop_jax.backends.backend import Backend
from coop_jax.base import absent_topologies

# By the extra that brings XLA's compiler for a device that is not there.
COMPILERS = {"cuda": absent_topologies.CUDA_PLUGINS, "tpu": ("libtpu",)}

hypothesis.settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("fixed")


def pytest_report_header() -> str:
    return f"jax {jax.__version__}, jaxlib {jaxlib.__version__}, {jax.devices()}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("absent"):
        [extra] = mark.args
        if not any(map(absent_topologies.is_installed, COMPILERS[extra])):
            pytest.skip(f"needs XLA's compiler of the extra `{extra}`")


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(scope="module")
def optimized_code():
    """Steps are compiled to the code that users run: for seconds, and for all bits."""
    before = jax.config.read("jax_disable_most_optimizations")
    # Else the same step could be of either code.
    jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


@pytest.fixture
def compilations_by_xla(monkeypatch):
    """What XLA compiles during the test, one item for each."""
    found = []

    def recorded(backend, *args, compile=Backend.compile):
        found.append(backend)
        return compile(backend, *args)

    monkeypatch.setattr(Backend, "compile", recorded)
    return found


@pytest.fixture
def compilation_cache(tmp_path):
    """JAX's persistent compilation cache, empty, in a directory of its own."""
    from jax.experimental.compilation_cache import compilation_cache as cache

    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    cache.reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    cache.reset_cache()
