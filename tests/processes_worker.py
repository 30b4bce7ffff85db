"""One of several processes on localhost; run by `test_processes.py`, not a test.

`python processes_worker.py RANK NUM PORT FOLDER CASE ...` prints a line of JSON per case.
"""

from __future__ import annotations

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import coop_jax

LAYERS, WIDTH = 6, 32


def step_with(rate):
    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return jnp.mean(h**2)

        value, grads = jax.value_and_grad(loss)(weights)
        return jax.tree.map(lambda w, g: w - rate * g, weights, grads), value

    return step


def arguments(mesh, batch=4096):
    rng = np.random.default_rng(0)

    def placed(value, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(value.shape, sharding, lambda i: value[i])

    draws = rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype("float32") * 0.1
    x = rng.normal(size=(batch, WIDTH)).astype("float32")
    return [placed(w, P()) for w in draws], placed(x, P("data"))


def trained(mesh, budget, num_steps=20, batch=4096, **options):
    """Losses of a budgeted step, with its plan."""
    step = coop_jax.remat_train_step(step_with(0.5), budget=budget, **options)
    weights, x = arguments(mesh, batch)
    plan = step.plan(weights, x)
    losses = []
    for _ in range(num_steps):
        weights, loss = step(weights, x)
        losses.append(float(loss))
    return step, plan, losses


def described(plan, losses):
    return {
        "losses": losses,
        "plan": str(plan),
        "is_unmodified": plan.is_unmodified,
        "measured_bytes": plan.measured_bytes,
        "budget_bytes": plan.budget_bytes,
    }


def trains(mesh, rank, folder):
    return described(*trained(mesh, "70%")[1:])


def meets_other_shapes(mesh, rank, folder):
    """A second kind of arguments is planned anew."""
    step, plan, losses = trained(mesh, "70%", 1)
    weights, x = arguments(mesh, 2048)
    step(weights, x)
    second = str(step.plan(weights, x))
    return {**described(plan, losses), "second": second, "step": repr(step)}


def fits(mesh, rank, folder):
    return described(*trained(mesh, "100%", 2)[1:])


def starts_from_a_file(mesh, rank, folder):
    path = os.path.join(folder, "plan.json")
    _, planned, losses = trained(mesh, "70%", 2)
    if rank == 0:
        planned.save(path)
    multihost_utils.sync_global_devices("saved")
    _, plan, again = trained(mesh, "70%", 2, plan=path)
    return {
        **described(plan, losses),
        "again": again,
        "num_compilations": plan.num_compilations,
    }


def has_a_plan_of_another_step(mesh, rank, folder):
    return described(
        *trained(mesh, "70%", 2, 2048, plan=os.path.join(folder, "plan.json"))[1:]
    )


def asks_for_too_little(mesh, rank, folder):
    return trained(mesh, "5%")


def differs_in_a_constant(mesh, rank, folder):
    step = coop_jax.remat_train_step(step_with(0.5 + rank), budget="70%")
    return step(*arguments(mesh))


def differs_in_shapes(mesh, rank, folder):
    return trained(mesh, "70%", batch=2048 * (1 + rank))


def differs_in_its_budget(mesh, rank, folder):
    return trained(mesh, f"{70 + rank}%")


def cannot_be_compiled_in_one(mesh, rank, folder):
    """One process cannot do its part of a plan."""
    from coop_jax.api.processes import Proposal, fit_together
    from coop_jax.base._compat_distributed import shared_store

    def realize(proposal):
        if rank == 1:
            raise OSError("no space left")
        return proposal

    step = {"equations": [["0", "a", ""]], "arguments": [], "results": []}
    return fit_together(
        shared_store(),
        range(jax.process_count()),
        step,
        lambda check: Proposal("text", 1, 1),
        realize,
        "remat_train_step",
    )


def is_of_one_process(mesh, rank, folder):
    """A step on this process's devices alone is planned by it alone."""
    own = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
    if rank != 0:
        return {}
    return described(*trained(own, "70%", 2)[1:])


CASES = {
    f.__name__: f
    for f in (
        trains,
        meets_other_shapes,
        fits,
        starts_from_a_file,
        has_a_plan_of_another_step,
        asks_for_too_little,
        differs_in_a_constant,
        differs_in_shapes,
        differs_in_its_budget,
        cannot_be_compiled_in_one,
        is_of_one_process,
    )
}


def main():
    rank, num_processes, port = map(int, sys.argv[1:4])
    folder, cases = sys.argv[4], sys.argv[5:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", num_processes=num_processes, process_id=rank
    )
    mesh = jax.make_mesh(
        (jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    if cases == ["plans"]:  # To be killed meanwhile.
        trained(mesh, "70%", batch=2048 * jax.device_count(), verbose=True)
        return
    for case in cases:
        try:
            found = CASES[case](mesh, rank, folder)
        except Exception as error:
            smallest_bytes = getattr(error, "smallest_bytes", None)
            found = {
                "error": type(error).__name__,
                "text": str(error),
                "smallest_bytes": smallest_bytes,
            }
        print(json.dumps({"case": case, **found}), flush=True)


if __name__ == "__main__":
    main()
