"""Loops table: a scanned decoder and two other loops under policies and under budgets.

    python examples/loops_table.py [--target cpu] [--steps ...] [--write]

Rows: the step as written, every `jax.checkpoint` policy for the body of its loop, and
coop_jax at the bytes of each policy, half way between, and at the smallest budget. On CPU
all versions run in turns, and times are medians relative to the version without
rematerialization.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools

import jax
import jax.numpy as jnp
from budget_table import markdown, progress
from models.scanned_decoder import DecoderSizes, decoder_problem

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.compile.traced_step import TracedStep
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

POLICIES = {
    "as written": None,
    "checkpoint, nothing": jax.checkpoint_policies.nothing_saveable,
    "checkpoint, dots": jax.checkpoint_policies.dots_saveable,
    "checkpoint, dots without batch": (
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
}
RESULTS = pathlib.Path(__file__).parent / "results"
ROUNDS = 7
Step = tuple[Callable, tuple]


@dataclasses.dataclass
class Row:
    """A version of a step."""

    name: str
    total_bytes: int
    compiled: Any
    note: str = ""
    seconds: list[float] = dataclasses.field(default_factory=list)


def decoder(sizes: DecoderSizes) -> Callable[[Any], Step]:
    def make(policy: Any) -> Step:
        return decoder_problem(sizes, policy, is_wrapped=policy is not None)

    return make


def recurrent(policy: Any, length: int = 2000, width: int = 64, batch: int = 32) -> Step:
    """A gated recurrent network over many steps."""

    def cell(state: jax.Array, x: jax.Array, w: dict) -> jax.Array:
        gate = jax.nn.sigmoid(state @ w["gate"] + x)
        return gate * state + (1 - gate) * jnp.tanh(state @ w["state"] + x)

    def loss(w: dict, inputs: jax.Array) -> jax.Array:
        def body(state, x):
            return cell(state, x, w), None

        wrapped = body if policy is None else jax.checkpoint(body, policy=policy)
        last, _ = jax.lax.scan(wrapped, jnp.zeros((batch, width)), inputs)
        return jnp.mean(last**2)

    return descent(
        loss,
        {name: normal(width, width, seed=i) for i, name in enumerate(("gate", "state"))},
        normal(length, batch, width, seed=2),
    )


def simulation(policy: Any, length: int = 10_000, size: int = 4096) -> Step:
    """A wave on a ring whose speed is fitted: a differentiable simulation."""

    def loss(speed: jax.Array, start: jax.Array) -> jax.Array:
        def body(state, _):
            height, rate = state
            bend = jnp.roll(height, 1) + jnp.roll(height, -1) - 2 * height
            rate = rate + 0.01 * jnp.tanh(speed) * jnp.sin(bend)
            return (height + 0.01 * rate, rate), None

        wrapped = body if policy is None else jax.checkpoint(body, policy=policy)
        (height, _), _ = jax.lax.scan(wrapped, (start, start * 0), None, length=length)
        return jnp.mean(height**2)

    return descent(loss, normal(size), normal(size, seed=1))


def accumulated(policy: Any, count: int = 8) -> Step:
    """Gradients of a scanned perceptron, accumulated over microbatches."""
    layers, width, batch = 12, 128, 256

    def loss(w: tuple, x: jax.Array) -> jax.Array:
        def body(x, w):
            return x + jax.nn.gelu(x @ w[0]) @ w[1], None

        wrapped = body if policy is None else jax.checkpoint(body, policy=policy)
        return jnp.mean(jax.lax.scan(wrapped, x, w)[0] ** 2)

    def step(w: tuple, batches: jax.Array) -> tuple[tuple, jax.Array]:
        def micro(total, x):
            value, grads = jax.value_and_grad(loss)(w, x)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, w), batches)
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, total), values.mean()

    w = normal(layers, width, 4 * width), normal(layers, 4 * width, width, seed=1)
    return step, (w, normal(count, batch, width, seed=2))


def descent(loss: Callable, weights: Any, batch: jax.Array) -> Step:
    def step(weights, batch):
        value, grads = jax.value_and_grad(loss)(weights, batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value

    return step, (weights, batch)


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return 0.1 * jax.random.normal(jax.random.key(seed), shape)


LARGE = DecoderSizes(
    layers=16,
    width=1024,
    hidden=2816,
    heads=8,
    groups=4,
    vocabulary=8192,
    batch=4,
    sequence=1024,
    dtype=jnp.bfloat16,
)
STEPS: dict[str, dict[str, Callable[[Any], Step]]] = {
    "cpu": {
        "decoder, 12 layers": decoder(DecoderSizes()),
        "recurrent, 2000 steps": recurrent,
        "simulation, 10000 steps": simulation,
        "accumulation, 8 microbatches": accumulated,
    },
    "h200": {"decoder, 16 layers": decoder(LARGE)},
    "tpu v5e": {"decoder, 16 layers": decoder(LARGE)},
}


def compiled_for(target: str, step: Callable, args: tuple) -> tuple[Any, tuple]:
    if target != "cpu":
        args = absent_devices.placed(args, absent_devices.named_device(target))
    traced = TracedStep.trace(step, {"donate_argnums": 0}, args, {})
    # A body's recomputation and the forward loop are in different computations: nothing
    # merges them, and the removal of barriers may stay on.
    return traced.compile_lowered(traced.lower_as_written()), args


def rows_of(target: str, make: Callable[[Any], Step]) -> tuple[list[Row], tuple]:
    rows = []
    for name, policy in POLICIES.items():
        compiled, args = compiled_for(target, *make(policy))
        rows.append(Row(name, memory_figures(compiled).total_bytes, compiled))
        progress(f"{name}: {rows[-1].total_bytes}")
    step, _ = make(None)
    by_hand = sorted({row.total_bytes for row in rows})
    between = [(a + b) // 2 for a, b in itertools.pairwise(by_hand)]
    for budget in sorted({*by_hand[:-1], *between}, reverse=True):
        rows.append(planned(step, args, budget))
    try:
        coop_jax.remat_train_step(step, budget=1, donate_argnums=0).plan(*args)
    except InfeasibleBudgetError as error:
        rows.append(planned(step, args, error.smallest_bytes))
    return rows, args


def planned(step: Callable, args: tuple, budget: int) -> Row:
    fitted = coop_jax.remat_train_step(step, budget=budget, donate_argnums=0)
    start = time.perf_counter()
    plan = fitted.plan(*args)
    took = time.perf_counter() - start
    assert plan.measured_bytes is not None
    assert plan.measured_bytes <= budget, "a budget was exceeded"
    parts = "; ".join(map(described, plan.loops))
    progress(f"budget {budget}: {plan.measured_bytes}")
    return Row(
        f"coop_jax, {budget / 2**20:.1f} MiB",
        plan.measured_bytes,
        fitted.lower(*args).compile(),
        f"{parts}; planned in {took:.0f} s",
    )


def described(loop: Any) -> str:
    if loop.live_bytes is not None:
        return f"{loop.length} at {loop.live_bytes / 2**20:.2f} MiB alive"
    return ", ".join(
        f"{part.last - part.first + 1} keep {part.kept_bytes / 2**20:.2f} MiB"
        + (f" in groups of {part.group}" if part.group > 1 else "")
        for part in loop.parts
    )


def measure(rows: Sequence[Row], args: tuple) -> None:
    """Runs all versions in turns."""
    for _ in range(ROUNDS):
        for row in rows:
            copies = jax.tree.map(jnp.copy, args)
            jax.block_until_ready(copies)
            start = time.perf_counter()
            jax.block_until_ready(row.compiled(*copies))
            row.seconds.append(time.perf_counter() - start)


def table(target: str, name: str) -> str:
    rows, args = rows_of(target, STEPS[target][name])
    if target == "cpu":
        measure(rows, args)
    first = statistics.median(rows[0].seconds) if rows[0].seconds else 1.0
    shown = [
        (
            row.name,
            f"{row.total_bytes / 2**20:.1f}",
            f"{statistics.median(row.seconds) / first:.2f}" if row.seconds else "not run",
            row.note,
        )
        for row in sorted(rows, key=lambda row: -row.total_bytes)
    ]
    columns = "version", "XLA's bytes, MiB", "measured ×", "iterations"
    return f"### {name}\n\n" + markdown(shown, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", choices=STEPS, default="cpu")
    parser.add_argument("--steps", nargs="*")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    names = arguments.steps or list(STEPS[arguments.target])
    tables = [table(arguments.target, name) for name in names]
    how = "" if arguments.target == "cpu" else " Compiled, not run."
    steps = "".join(f" {name!r}" for name in arguments.steps or ())
    steps = f" --steps{steps}" if steps else ""
    head = (
        f"`python examples/loops_table.py --target {arguments.target!r}{steps}`, "
        f"Python {platform.python_version()}, jax {jax.__version__}, "
        f"two cores of a {platform.machine()} server.{how}"
    )
    text = "\n\n".join([head, *tables]) + "\n"
    print(text)
    if arguments.write:
        name = arguments.target.replace(" ", "_")
        (RESULTS / f"loops_{name}.md").write_text(text)


if __name__ == "__main__":
    main()
