"""What is compiled to be read, without optimized code, has the buffers of what runs."""

import jax
import jax.numpy as jnp
import pytest
from steps import QUICK, mlp_arguments, mlp_step, traced

import coop_jax
from coop_jax.graph import stored_values
from coop_jax.xla.buffer_assignment import read_stored_module
from coop_jax.xla.memory_figures import memory_figures


def scanned(weights, x):
    def loss(weights):
        def body(h, w):
            return h + jnp.tanh(jnp.tanh(h @ w) * 1.1), None

        return jnp.mean(jnp.sort(jax.lax.scan(body, x, weights)[0]) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def scanned_arguments():
    return jnp.stack([jnp.eye(32)] * 4), jnp.ones((256, 32))


@pytest.mark.parametrize(
    ("step", "arguments"),
    [(mlp_step, lambda: mlp_arguments(layers=3)), (scanned, scanned_arguments)],
)
def test_buffers_are_those_of_optimized_code(step, arguments):
    made = traced(step, *arguments(), donate_argnums=0)
    lowered = made.lower(stored_values.tag(made.program))
    assert made.backend.reading_options
    read, run = made.compile_afresh(lowered), made.compile_lowered(lowered)
    assert read.as_text() == run.as_text()
    assert memory_figures(read) == memory_figures(run)
    assert read_stored_module(read) == read_stored_module(run)


@pytest.mark.parametrize("level", [1, 3])
def test_the_user_may_ask_for_a_level(level):
    options = {"compiler_options": {"xla_backend_optimization_level": level}}
    plans = [
        coop_jax.remat_train_step(mlp_step, budget="70%", planner=QUICK, **given).plan(
            *mlp_arguments()
        )
        for given in ({}, options)
    ]
    assert plans[0].measured_bytes == plans[1].measured_bytes <= plans[1].budget_bytes
