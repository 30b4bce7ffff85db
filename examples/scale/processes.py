"""A step over several processes on localhost, trained under one plan.

python examples/scale/processes.py

It starts two processes, each with one CPU device, as a cluster would start one per host.
Every process runs `train` and prints the same plan and the same losses.
"""

import argparse
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import coop_jax


@coop_jax.remat_train_step(budget="70%", donate_argnums=0)
def train_step(weights, x):
    def loss_fn(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    loss, grads = jax.value_and_grad(loss_fn)(weights)
    return jax.tree.map(lambda w, g: w - 0.5 * g, weights, grads), loss


def placed(value, mesh, spec):
    """A global array, of which this process holds the shards of its devices."""
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def train(rank, num_processes, port, num_steps):
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", num_processes=num_processes, process_id=rank
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(8, 64, 64)).astype("float32") * 0.1
    weights = [placed(w, mesh, P()) for w in draws]
    x = placed(rng.normal(size=(4096, 64)).astype("float32"), mesh, P("data"))
    plan = train_step.plan(weights, x)  # Every process calls it, as it calls the step.
    assert plan.measured_bytes <= plan.budget_bytes
    losses = []
    for _ in range(num_steps):
        weights, loss = train_step(weights, x)
        losses.append(float(loss))
    print(f"process {rank} of {num_processes}\n{plan}\nlosses {losses[0]} to {losses[-1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rank", type=int, help="set for the processes that it starts")
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    if given.rank is not None:
        return train(given.rank, given.processes, given.port, given.steps)
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = listening.getsockname()[1]
    command = [sys.executable, __file__, "--processes", str(given.processes)]
    command += ["--steps", str(given.steps), "--port", str(port)]
    started = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(given.processes)
    ]
    outputs = [process.communicate()[0] for process in started]
    print("\n".join(outputs))
    assert not any(process.returncode for process in started)
    plans = {text[text.index("coop_jax plan") :] for text in outputs}
    assert len(plans) == 1, "the processes have one plan and the same losses"


if __name__ == "__main__":
    main()
