"""Plan files: steps planned, saved, and started again from the file in another process.

    python examples/plan_files.py [--target cpu] [--steps ...] [--write]

The second process has nothing but the file. Its optimized module is compared with the one
that was planned, as text without names, source lines and name scopes. *Seconds* are of
planning and compiling in the first process, and of all that the step takes to start in the
second one, compilation included. For an absent target the executable cannot run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from budget_table import markdown, progress
from flax import nnx
from models import convnet_problem, transformer_problem
from models.loops import accumulated
from models.scanned_decoder import DecoderSizes, decoder_problem
from models.scanned_transformer import TransformerSizes, scanned_transformer_problem
from optimized_module import module_text

import coop_jax

# Batches of which a TPU's memory on the chip does not hold all.
_SCALE = {"tpu v5e": 32}
RESULTS = pathlib.Path(__file__).parent / "results"
Step = tuple[Callable, tuple, dict[str, Any]]
"""A step, its arguments, and its options."""
COLUMNS = (
    "step",
    "budget",
    "plan",
    "equations",
    "file, kB",
    "compilations, planned",
    "compilations, from the file",
    "seconds, planned",
    "seconds, from the file",
    "same module",
)


def mlp(scale: int) -> Step:
    weights = [0.1 * jax.random.normal(jax.random.key(i), (256, 256)) for i in range(8)]

    def step(weights, x):
        def loss(weights):
            hidden = x
            for w in weights:
                hidden = hidden + jnp.tanh(hidden @ w)
            return jnp.mean(hidden**2)

        value, grads = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    return step, (weights, jnp.ones((scale * 2048, 256))), {"donate_argnums": 0}


def flax(problem: Any) -> Step:
    arguments = problem.state, problem.batch, problem.key
    return problem.train_step, arguments, {"donate_argnums": 0}


def equinox_modules(scale: int) -> Step:
    optimizer = optax.adam(3e-4)
    keys = jax.random.split(jax.random.key(0), 8)
    linear = [eqx.nn.Linear(128, 128, key=key) for key in keys]
    model = eqx.nn.Sequential([m for one in linear for m in (one, eqx.nn.Lambda(jnp.tanh))])

    def step(model, state, x):
        def loss(model):
            return jnp.mean(jax.vmap(model)(x) ** 2)

        grads = eqx.filter_grad(loss)(model)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state

    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    arguments = model, state, jnp.ones((scale * 4096, 128))
    return step, arguments, {"donate_argnums": (0, 1)}


def nnx_objects(scale: int) -> Step:
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List(nnx.Linear(128, 128, rngs=rngs) for _ in range(8))

        def __call__(self, x):
            for layer in self.layers:
                x = x + nnx.gelu(layer(x))
            return x

    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-4), wrt=nnx.Param)
    return step, (model, optimizer, jnp.ones((scale * 4096, 128))), {}


def decoder(scale: int) -> Step:
    sizes = DecoderSizes(layers=6, width=64, hidden=192, vocabulary=256, batch=2 * scale)
    return *decoder_problem(sizes), {"donate_argnums": 0}


def transformer_in_a_loop(scale: int) -> Step:
    sizes = TransformerSizes(batch=scale * TransformerSizes().batch)
    return *scanned_transformer_problem(sizes, lambda layer: layer), {}


def transformer(scale: int) -> Step:
    return flax(transformer_problem(num_layers=3, batch_size=8 * scale))


def conv_net(scale: int) -> Step:
    return flax(convnet_problem(width=16, batch_size=32 * scale))


# By name: the step for a scale of its batch, and its budget.
STEPS: dict[str, tuple[Callable[[int], Step], str]] = {
    "MLP": (mlp, "60%"),
    "transformer (Flax)": (transformer, "60%"),
    "conv net (Flax)": (conv_net, "75%"),
    "MLP (Equinox)": (equinox_modules, "60%"),
    "MLP (Flax NNX)": (nnx_objects, "60%"),
    "scanned transformer": (transformer_in_a_loop, "60%"),
    "scanned decoder (Flax NNX)": (decoder, "70%"),
    "accumulation": (lambda scale: (*accumulated(None), {}), "70%"),
}


def planned(name: str, target: str, **options: Any) -> tuple[coop_jax.Plan, str, float]:
    """The plan of a step for a target, a digest of its module, and the seconds it took."""
    make, budget = STEPS[name]
    fn, args, jit_options = make(_SCALE.get(target, 1))
    step = coop_jax.remat_train_step(fn, budget=budget, **jit_options, **options)
    start = time.perf_counter()
    plan = step.plan_for(target, args, {})
    seconds = time.perf_counter() - start

    def digest(budgeted: Any, args: tuple, kwargs: dict) -> str:
        compiled = budgeted.fitted(*budgeted._placed(target, args, kwargs)).compiled
        return hashlib.sha256(module_text(compiled).encode()).hexdigest()

    return plan, step._within(args, {}, digest), seconds


def row(name: str, target: str) -> list[str]:
    """A line of the table."""
    plan, digest, seconds = planned(name, target)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        plan.save(path)
        command = [sys.executable, __file__, "--target", target, "--start", str(path), name]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        size = path.stat().st_size
        equations = len(json.loads(path.read_text())["step"]["equations"]) - 1
    started = json.loads(ran.stdout.splitlines()[-1])
    return [
        name,
        STEPS[name][1],
        kind_of(plan),
        str(equations),
        f"{size / 1000:.0f}",
        str(plan.num_compilations),
        str(started["compilations"]),
        f"{seconds:.1f}",
        f"{started['seconds']:.1f}",
        "yes" if started["digest"] == digest else "**no**",
    ]


def kind_of(plan: coop_jax.Plan) -> str:
    """What the plan changes."""
    kinds = {
        "as written": plan.is_unmodified,
        "loops": any(loop.parts for loop in plan.loops),
        "bodies of loops": any(loop.live_bytes is not None for loop in plan.loops),
        "straight line": plan.schedule is not None,
    }
    return ", ".join(kind for kind, is_there in kinds.items() if is_there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="save the table")
    arguments = parser.parse_args()
    if arguments.start:
        path, name = arguments.start
        plan, digest, seconds = planned(name, arguments.target, plan=path)
        found = {
            "compilations": plan.num_compilations,
            "digest": digest,
            "seconds": seconds,
        }
        print(json.dumps(found))
        return
    rows = []
    for name in arguments.steps:
        progress(name)
        rows.append(row(name, arguments.target))
        print(rows[-1], flush=True)
    where = "this CPU" if arguments.target == "cpu" else f"{arguments.target}, absent"
    absent = "" if arguments.target == "cpu" else " Compiled, not run."
    text = (
        f"`python examples/{shlex.join(['plan_files.py', *sys.argv[1:]])}`\n\n"
        f"Python {platform.python_version()}, jax {jax.__version__}; "
        f"{platform.machine()}, {os.cpu_count()} cores, shared with other work; for "
        f"{where}.{absent}\n\n" + markdown(rows, COLUMNS) + "\n"
    )
    print(text)
    if arguments.write:
        target = arguments.target.replace(" ", "_")
        (RESULTS / f"plan_files_{target}.md").write_text(text)


if __name__ == "__main__":
    main()
