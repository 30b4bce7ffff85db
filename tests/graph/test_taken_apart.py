"""Results of a `shard_map` that stays one operation do not bound what a plan needs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec
from scanned_steps import descent, normal
from steps import compiled_graph, traced

from coop_jax import InfeasibleBudgetError, remat_train_step
from coop_jax.graph.taken_apart import without_taken_apart

LAYERS, BATCH, WIDTH = 6, 1024, 96


def step_with_maps():
    """Layers that are a `shard_map` each, of one device, and stay one operation each: the
    map before them is checked, and they are not."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("a",))

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(Spec("a"), Spec()),
        out_specs=Spec("a"),
        check_vma=False,
    )
    def layer(x, w):
        return x + jax.nn.gelu(x @ w)

    first = jax.shard_map(jnp.sin, mesh=mesh, in_specs=Spec("a"), out_specs=Spec("a"))

    def loss(weights, x):
        x = first(x)
        for w in weights:
            x = layer(x, w)
        return jnp.mean(x**2)

    weights = [normal(WIDTH, WIDTH, seed=k) for k in range(LAYERS)]
    return descent(loss, weights, normal(BATCH, WIDTH))


def test_only_results_of_it_take_no_bytes():
    step, args = step_with_maps()
    step = traced(step, *args)
    stored = compiled_graph(step).stored
    fewer = without_taken_apart(step.program, stored)
    changed = {v for v, size in fewer.stored_bytes.items() if stored.bytes_of(v) != size}
    made = {
        v for e in step.program.eqns if e.primitive.name == "shard_map" for v in e.outvars
    }
    assert changed
    assert changed <= made
    plain = traced(lambda x: jnp.sin(x) @ x, jnp.ones((8, 8)))
    stored = compiled_graph(plain).stored
    assert without_taken_apart(plain.program, stored) is stored


@pytest.mark.slow
@pytest.mark.hand
def test_the_smallest_budget_is_not_above_what_a_plan_needs():
    step, args = step_with_maps()
    with pytest.raises(InfeasibleBudgetError) as caught:
        remat_train_step(step, budget=1, donate_argnums=0).plan(*args)
    error = caught.value
    plans = [
        remat_train_step(step, budget=budget, donate_argnums=0).plan(*args)
        for budget in ("50%", error.smallest_bytes)
    ]
    assert error.smallest_bytes <= plans[0].measured_bytes
    assert plans[1].measured_bytes <= error.smallest_bytes
    assert error.smallest_bytes < 0.4 * plans[0].unmodified_bytes
