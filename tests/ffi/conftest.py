"""The exchange under test, on every platform that this machine and build have."""

import jax
import pytest
from ffi.exchanges import Exchanger

from coop_jax import _ext


@pytest.fixture(
    scope="session", params=["cpu", pytest.param("CUDA", marks=pytest.mark.gpu)]
)
def exchanger(request) -> Exchanger:
    platform = request.param
    if platform == "CUDA" and not _ext.has_cuda:
        pytest.skip("built without CUDA")
    try:
        [device, *_] = jax.devices(platform.lower())
    except RuntimeError as error:
        pytest.skip(f"no GPU that JAX can use: {str(error).splitlines()[0]}")
    return Exchanger(device, platform)
