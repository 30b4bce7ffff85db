"""A small training step that is one `shard_map` over four devices, and a plan of it."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from steps import QUICK, compiled_graph, mlp_arguments, traced

from coop_jax.plan.planner import plan_pool, unconstrained

LAYERS = 6


def mean_step(weights, x):
    """SGD with momentum by the mean of the gradients over all devices, at the end."""

    def loss(parameters):
        hidden = x
        for w in parameters:
            hidden = hidden + jnp.tanh(hidden @ w)
        return jnp.mean(hidden**2)

    parameters, momentum = weights
    value, grads = jax.value_and_grad(loss)(parameters)
    grads = jax.lax.pmean(grads, "data")
    momentum = [0.9 * m + g for m, g in zip(momentum, grads, strict=True)]
    parameters = [w - 0.1 * m for w, m in zip(parameters, momentum, strict=True)]
    return (parameters, momentum), jax.lax.pmean(value, "data")


def mapped_step():
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("data",))
    whole, rows = PartitionSpec(), PartitionSpec("data")
    return jax.shard_map(
        mean_step, mesh=mesh, in_specs=(whole, rows), out_specs=whole, check_vma=False
    )


def mapped_arguments():
    """Weights that are as large as what a device keeps of them."""
    parameters, x = mlp_arguments(layers=LAYERS, batch=512, width=128)
    return (parameters, [jnp.zeros_like(w) for w in parameters]), x


@functools.cache
def mapped_plan():
    """The traced step, its graph and a plan that recomputes."""
    step = traced(mapped_step(), *mapped_arguments(), donate_argnums=0)
    graph = compiled_graph(step)
    most = unconstrained(graph, QUICK).statistics.max_live_bytes
    return step, graph, plan_pool(graph, int(0.75 * most), QUICK)
