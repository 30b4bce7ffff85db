"""Side by side: train with several versions of one step and compare what comes out.

The versions take turns on every batch, so that a busy machine slows all of them alike
and the ratio of their median step times is worth something.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from models import TrainingProblem

FIRST_STEPS_TOLERANCE = 1e-4
DEPARTURE_FACTOR = 10


@dataclasses.dataclass
class Run:
    """The training with one version of the step: its state so far, and its record."""

    state: Any
    losses: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        """Without the first step, which pays for touching fresh memory."""
        return statistics.median(self.seconds[1:] or self.seconds)


def train(
    problem: TrainingProblem, steps: Mapping[str, Callable], batches: Iterable[Any]
) -> dict[str, Run]:
    """Train from the same state with the same batches and keys, in turns.

    Arguments:
        problem: where the state and the key come from.
        steps: the versions of its step, compiled, by name. They may donate the state.
        batches: one per training step.
    """
    runs = {name: Run(problem.fresh_state()) for name in steps}
    names = list(steps)
    for idx, batch in enumerate(batches):
        key = jax.random.fold_in(problem.key, idx)
        # Rotated, or each version would always find the caches and the allocator as the
        # same other version left them.
        first = idx % len(names)
        for name in names[first:] + names[:first]:
            run = runs[name]
            start = time.perf_counter()
            run.state, loss = jax.block_until_ready(steps[name](run.state, batch, key))
            run.seconds.append(time.perf_counter() - start)
            run.losses.append(float(loss))
    return runs


def use_exact_products() -> None:
    """Multiply float32 matrices in float32 from now on, as CPUs do.

    GPUs and TPUs round the operands to fewer bits by default, and losses of versions that
    differ by roundings part within a few steps.
    """
    jax.config.update("jax_default_matmul_precision", "float32")


def one_rounding_away(problem: TrainingProblem) -> TrainingProblem:
    """The same problem from parameters moved to the next float32."""
    params = jax.tree.map(lambda x: jnp.nextafter(x, jnp.inf), problem.state.params)
    return dataclasses.replace(problem, state=problem.state._replace(params=params))


def check_losses(
    problem: TrainingProblem,
    steps: Mapping[str, Callable],
    batches: Sequence[Any],
    runs: Mapping[str, Run],
    num_first: int,
) -> None:
    """Assert that two versions of a step train alike, and print how closely.

    Both compute the same values, rounded differently, because XLA fuses them
    differently. Training enlarges a rounding from step to step, by how much depends on
    the network, so no fixed tolerance is right for all of it: the first steps must
    agree closely, and the rest must not differ much more than the step as written
    differs from itself when it starts one rounding away.

    Arguments:
        problem, steps, batches: as given to `train`; two steps.
        runs: what it returned.
        num_first: how many steps must agree closely.
    """
    (name, step), _ = steps.items()
    before, after = runs.values()
    nudged = train(one_rounding_away(problem), {name: step}, batches)[name]
    first = largest_difference(before, after, num_first)
    difference = largest_difference(before, after)
    departure = largest_difference(before, nudged)
    print(
        f"  largest relative difference {difference:.1e} ({first:.1e} in the first "
        f"{num_first} steps)\n"
        f"  {name}, started one rounding away: {departure:.1e}\n"
    )
    assert first <= FIRST_STEPS_TOLERANCE
    assert difference <= max(FIRST_STEPS_TOLERANCE, DEPARTURE_FACTOR * departure)


def step_bytes(compiled: jax.stages.Compiled) -> int:
    """The bytes of a compiled step, by XLA: the figure that budgets are about."""
    figures = compiled.memory_analysis()
    return (
        figures.argument_size_in_bytes
        + figures.output_size_in_bytes
        - figures.alias_size_in_bytes
        + figures.temp_size_in_bytes
    )


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def largest_difference(first: Run, second: Run, num_steps: int | None = None) -> float:
    """Of the losses of the first `num_steps` steps (or all), relative to `first`'s."""
    pairs = zip(first.losses[:num_steps], second.losses[:num_steps], strict=True)
    return max(abs(a - b) / abs(a) for a, b in pairs)


def print_losses(runs: Mapping[str, Run], num_rows: int = 7) -> None:
    """A few rows of the loss curves, the first and the last step among them."""
    print("  step" + "".join(f"{name:>14}" for name in runs))
    last = len(next(iter(runs.values())).losses) - 1
    rows = {round(idx * last / max(num_rows - 1, 1)) for idx in range(num_rows)}
    for idx in sorted(rows):
        print(f"{idx + 1:6d}" + "".join(f"{r.losses[idx]:14.6f}" for r in runs.values()))


def plot(path: str, title: str, runs: Mapping[str, Run], sizes: Mapping[str, int]):
    """Save the loss curves and the bytes as a picture; needs matplotlib."""
    from matplotlib.figure import Figure  # Optional: only for `--plot`.

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    figure.suptitle(title)
    curves, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=False):
        curves.plot(range(1, len(run.losses) + 1), run.losses, style, label=name)
    curves.set(xlabel="step", ylabel="loss")
    curves.legend()
    bars.bar(list(sizes), [count / 2**20 for count in sizes.values()])
    bars.set(ylabel="MiB needed by the step")
    figure.savefig(path, dpi=150)
