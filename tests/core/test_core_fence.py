"""The custom call `coop_fence` on CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coop_jax import _ext


@pytest.fixture(scope="module")
def target():
    name = "coop_fence_under_test"
    handler = _ext.registrations()["cpu"]["coop_fence"]
    jax.ffi.register_ffi_target(name, handler, platform="cpu")
    return name


def fence(target, *arrays, aliased=True, shapes=None):
    results = shapes or [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    aliases = {i: i for i in range(len(arrays))} if aliased else None
    return jax.ffi.ffi_call(target, results, input_output_aliases=aliases)(*arrays)


ARRAYS = (
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.array([True, False]),
    np.float32(7),
    np.zeros((0, 3), np.int32),
)


@pytest.mark.parametrize("aliased", [True, False])
def test_gives_back_what_it_gets(target, aliased):
    results = jax.jit(lambda *xs: fence(target, *xs, aliased=aliased))(*ARRAYS)
    for result, array in zip(results, ARRAYS, strict=True):
        np.testing.assert_array_equal(result, array)


def test_keeps_a_recomputation_apart(target):
    def step(x):
        y = jnp.sin(x)
        (again,) = fence(target, x)
        return y, jnp.sin(again)

    x = jnp.ones((256,), jnp.float32)
    compiled = jax.jit(step).lower(x).compile()
    assert compiled.as_text().count(" sine(") == 2
    np.testing.assert_allclose(*compiled(x), rtol=1e-6)


def test_a_dead_operand_is_not_copied(target):
    def step(x):
        (y,) = fence(target, x * 2)
        return y.sum()

    text = jax.jit(step).lower(jnp.ones((1024,), jnp.float32)).compile().as_text()
    assert " copy(" not in text[text.index("ENTRY") :]


def test_refuses_a_different_number_of_results(target):
    x = jnp.ones((4,), jnp.float32)
    message = "coop_fence: every operand must have one result, got 2 operands and 1"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(
            fence(target, x, x, aliased=False, shapes=[jax.ShapeDtypeStruct((4,), "f4")])
        )


def test_refuses_results_of_another_size(target):
    x = jnp.ones((4,), jnp.float32)
    message = "operand and result 0 must have the same size, got 16 and 20 bytes"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(
            fence(target, x, aliased=False, shapes=[jax.ShapeDtypeStruct((5,), "f4")])
        )
