"""Products of absent GPUs are those that a GPU mostly chooses, unless the user says."""

import jax
import jax.numpy as jnp
import pytest
from steps import NEEDS_CUDA, traced

from coop_jax.backends.gpu.untuned_products import product_options
from coop_jax.xla.absent_devices import named_device, placed

OPTION = "xla_gpu_enable_triton_gemm"


def kernels_of_products(step):
    text = step.compile(step.program).as_text()
    return text.count("__cublas"), text.count("__triton")


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_of_an_absent_gpu(dtype):
    args = [jnp.ones((512, 512), dtype)] * 2
    args = placed(args, named_device("h200"))
    cublas, triton = kernels_of_products(traced(lambda x, w: jnp.tanh(x @ w) @ w, *args))
    assert (cublas, triton) == (2, 0)


@NEEDS_CUDA
def test_options_of_the_user_stay(monkeypatch):
    device = named_device("h200")
    assert product_options(device, {}) == {OPTION: False}
    assert product_options(device, {OPTION: True}) == {}
    monkeypatch.setenv("XLA_FLAGS", f"--{OPTION}=true")
    assert product_options(device, {}) == {}


def test_devices_that_are_there_choose_by_themselves():
    assert product_options(jax.devices()[0], {}) == {}
