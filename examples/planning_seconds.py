"""Planning seconds: how long a step is planned, beside how long `jax.jit` compiles it.

    python examples/planning_seconds.py [--steps ...] [--budgets 80 60 45] [--write]

Steps that compile within seconds, for which planning takes longest relative to that; each
budget with a new cache, so that nothing is known of the step. A budget that is refused
takes the seconds until the refusal. The step is compiled by `jax.jit` before and after its
budgets, and the ratios are to the mean of both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import platform
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from budget_table import markdown, progress
from models import TrainingProblem, convnet_problem, transformer_problem
from models.scanned_decoder import DecoderSizes, decoder_problem

import coop_jax

COLUMNS = (
    "step",
    "`jax.jit`, s",
    "budget",
    "XLA's bytes",
    "compilations",
    "s",
    "× `jax.jit`",
)
RESULTS = pathlib.Path(__file__).parent / "results" / "planning_seconds_cpu.md"
Step = tuple[Callable, tuple[Any, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument(
        "--budgets", nargs="+", type=float, default=[80, 60, 45], metavar="PERCENT"
    )
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    args = parser.parse_args()

    jax.jit(lambda x: x + 1).lower(1.0).compile()  # XLA starts.
    rows: list[list[str]] = []
    for name in args.steps:
        rows += rows_of(name, *STEPS[name](), args.budgets)
        progress(markdown(rows, COLUMNS))
        if args.write:
            RESULTS.write_text(f"{header()}\n\n{markdown(rows, COLUMNS)}\n")
    print(f"{header()}\n\n{markdown(rows, COLUMNS)}")


def residual_mlp(width: int = 128, layers: int = 8) -> Step:
    """Layers of one product each: hardly anything to compile."""

    def step(weights, x):
        def loss(weights):
            h = x
            for weight in weights:
                h = h + jnp.tanh(jnp.sin(h @ weight))
            return (h**2).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value

    weights = [jnp.ones((width, width)) for _ in range(layers)]
    return step, (weights, jnp.ones((1024, width)))


def accumulated(count: int = 4, layers: int = 6, width: int = 256) -> Step:
    """Gradients accumulated over microbatches in a `fori_loop`."""

    def step(weights, batches):
        def loss(weights, x):
            for first, second in weights:
                x = x + jax.nn.gelu(x @ first) @ second
            return (x**2).mean()

        def add(number, total):
            gradients = jax.grad(loss)(weights, batches[number])
            return jax.tree.map(jnp.add, total, gradients)

        zeros = jax.tree.map(jnp.zeros_like, weights)
        total = jax.lax.fori_loop(0, count, add, zeros)
        return jax.tree.map(lambda w, g: w - 0.1 * g / count, weights, total)

    weights = [
        (jnp.ones((width, 4 * width)), jnp.ones((4 * width, width))) for _ in range(layers)
    ]
    return step, (weights, jnp.ones((count, 512, width)))


def of_problem(problem: TrainingProblem) -> Step:
    return problem.train_step, (problem.state, problem.batch, problem.key)


STEPS: dict[str, Callable[[], Step]] = {
    "residual MLP": residual_mlp,
    "accumulated": accumulated,
    "transformer": lambda: of_problem(transformer_problem(num_layers=4)),
    "convnet": lambda: of_problem(convnet_problem(stage_sizes=(2, 2, 2), width=16)),
    "scanned decoder": lambda: decoder_problem(DecoderSizes(layers=8)),
}


def rows_of(
    name: str, step: Callable, args: tuple[Any, ...], budgets: Sequence[float]
) -> list[list[str]]:
    """The cells of a step's budgets."""
    before = compile_seconds(step, args)
    planned = [plan(step, args, percent) for percent in budgets]
    mean = (before + compile_seconds(step, args)) / 2
    return [
        [name, f"{mean:.1f}", *cells, f"{seconds:.1f}", f"{seconds / mean:.1f}"]
        for cells, seconds in planned
    ]


def compile_seconds(step: Callable, args: tuple[Any, ...]) -> float:
    """Seconds to trace, lower and compile a step by `jax.jit`."""
    start = time.perf_counter()
    jax.jit(lambda *args: step(*args)).lower(*args).compile()
    return time.perf_counter() - start


def plan(step: Callable, args: tuple[Any, ...], percent: float) -> tuple[list[str], float]:
    """The budget, bytes and compilations of a plan, and the seconds that it took."""
    start = time.perf_counter()
    try:
        found = coop_jax.remat_train_step(step, budget=f"{percent:g}%").plan(*args)
    except coop_jax.InfeasibleBudgetError:
        cells = ["refused", ""]
    else:
        cells = [
            f"{found.measured_bytes / found.unmodified_bytes:.1%}",
            str(found.num_compilations),
        ]
    return [f"{percent:g} %", *cells], time.perf_counter() - start


def header() -> str:
    version = importlib.metadata.version
    return (
        "`python examples/planning_seconds.py --write`. Python "
        f"{platform.python_version()}, jax {version('jax')}; {platform.machine()}, "
        f"{os.cpu_count()} cores, shared with other work."
    )


if __name__ == "__main__":
    main()
