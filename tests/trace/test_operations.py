"""Prices of work other than products: as the executable's, and none that is free."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from steps import traced

import coop_jax
from coop_jax import targets
from coop_jax.trace.costs import aval_bytes, seconds, seconds_again
from coop_jax.trace.operations import is_long
from coop_jax.trace.program import reads, writes
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

CPU = targets.named("cpu")
SHAPE = 64, 128, 128

# One equation each; those that XLA computes by longer formulas than one are not here.
ELEMENTWISE = {
    "exp": jnp.exp,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "cbrt": lax.cbrt,
    "atan2": lambda x: lax.atan2(x, x),
    "pow": lambda x: lax.pow(x, x),
    "power of 1.7": lambda x: x**1.7,
    "rem": lambda x: lax.rem(x, x),
}
SCANNED = {
    "argmax": lambda x: lax.argmax(x, 1, jnp.int32),
    "argmin of rows": lambda x: lax.argmin(x, 2, jnp.int32),
    "cumsum": lambda x: lax.cumsum(x, 1),
    "cumsum of rows": lambda x: lax.cumsum(x, 2),
    "cummax": lambda x: lax.cummax(x, 1),
    "cumprod": lambda x: lax.cumprod(x, 2),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "reverse": lambda x: lax.cumsum(x, 1, reverse=True),
}
FOURIER = {
    "fft": lambda x: jnp.fft.fft(lax.complex(x, x)),
    "rfft": jnp.fft.rfft,
    "irfft": lambda x: jnp.fft.irfft(lax.complex(x, x)),
    "fft of planes": lambda x: jnp.fft.rfft2(x),
}
ALL = {**ELEMENTWISE, **SCANNED, **FOURIER}


def stored_seconds(eqns):
    """Of equations that read and write main memory."""
    return sum(
        seconds(
            *([eqn], sum(aval_bytes(v.aval) for v in reads(eqn))),
            *(sum(aval_bytes(v.aval) for v in writes(eqn)), CPU),
        )
        for eqn in eqns
    )


@pytest.mark.parametrize("name", ALL)
def test_an_equation_has_about_the_price_of_its_executable(name):
    x = jnp.ones(SHAPE)
    eqns = traced(ALL[name], x).program.eqns
    executable = executable_seconds(jax.jit(ALL[name]).lower(x).compile(), CPU)
    assert executable / 2.5 < stored_seconds(eqns) < 2.5 * executable


@pytest.mark.parametrize("target", targets.names())
@pytest.mark.parametrize("name", sorted(set(ALL) - {"exp"}))
def test_long_work_is_not_free_inside_of_its_readers(name, target):
    rates = targets.named(target)
    x = jnp.ones(SHAPE)
    again = sum(seconds_again(eqn, rates) for eqn in traced(ALL[name], x).program.eqns)
    assert again > 8 * x.size / rates.vector_rate


def test_what_takes_a_root_or_a_product_is_not_long():
    def only(function, x):
        (eqn,) = traced(function, x).program.eqns
        return eqn

    x = jnp.ones(8)
    assert is_long(only(lambda x: x**1.5, x))
    assert is_long(only(lambda x: lax.pow(x, 1 + 2j), lax.complex(x, x)))
    assert not is_long(only(lambda x: x**0.5, x.astype(jnp.bfloat16)))
    assert not is_long(only(lambda x: lax.pow(x, 0.5), x))
    assert is_long(only(lambda x: lax.rem(x, x), x))
    assert not is_long(only(lambda i: lax.rem(i, i), x.astype(jnp.int32)))
    assert is_long(only(lambda x: lax.igamma(x, x), x))


def sines(weights, x):
    """Layers of a sinusoidal representation network (Sitzmann et al., 2020)."""
    for w in weights:
        x = jnp.sin(x @ (3 * w))
    return jnp.mean((x - 1) ** 2)


def test_products_are_made_again_before_sines():
    """Where a sine was as cheap as an addition, a plan for the bytes of this policy, which
    makes products again, made the sines again, which take longer."""
    key = jax.random.key(0)
    args = 0.1 * jax.random.normal(key, (8, 128, 128)), jax.random.normal(key, (8192, 128))
    layer = jax.checkpoint(lambda x, w: jnp.sin(x @ (3 * w)))

    def by_layers(weights, x):
        for w in weights:
            x = layer(x, w)
        return jnp.mean((x - 1) ** 2)

    policy = jax.jit(jax.value_and_grad(by_layers)).lower(*args).compile()
    budget = memory_figures(policy).total_bytes
    fitted = coop_jax.remat_train_step(jax.value_and_grad(sines), budget=budget)
    planned = fitted.lower(*args).compile()
    assert executable_seconds(planned, CPU) < 1.05 * executable_seconds(policy, CPU)
