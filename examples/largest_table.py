"""Largest table: the largest sizes that `largest` finds, and whether the next ones fit.

    python examples/largest_table.py [--steps ...] [--write]

Of five steps, three on this CPU and two for devices that are not there, the largest size
within a budget. Then the answer and the sizes behind it are planned from scratch, by `fit`
with the same budget, until one is refused: the last one before that is the true largest.
Nothing is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from budget_table import markdown, progress
from models import TrainingProblem, convnet_problem, transformer_problem
from models.scanned_decoder import DecoderSizes, decoder_problem
from models.scanned_transformer import TransformerSizes, scanned_transformer_problem

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.base.budget import format_bytes

RESULTS = pathlib.Path(__file__).parent / "results" / "largest_table.md"
MOST_BEHIND = 4  # Sizes behind the answer that are planned at most.
COLUMNS = (
    *("step", "target", "sizes", "budget", "`largest`", "its bytes"),
    *("true largest", "the next size needs", "compilations", "of the answer alone", "s"),
)


@dataclasses.dataclass(frozen=True)
class Sized:
    """A step of several sizes.

    Attributes:
        name: of the step and of its size.
        make: returns the step of a size and its arguments, as for `largest`.
        sizes: the sizes.
        budget: the budget.
        target: a target that is not there; None: this CPU.
    """

    name: str
    make: Callable[[int], tuple[Callable, Any]]
    sizes: range
    budget: str
    target: str | None = None


def _abstract(make: Callable[[], tuple[Callable, tuple]]) -> tuple[Callable, Any]:
    """A step and the shapes of its arguments; no array is made."""
    steps: list[Callable] = []

    def arguments() -> Any:
        step, args = make()
        steps.append(step)
        return args

    args = jax.eval_shape(arguments)
    return steps[0], args


def of_problem(make: Callable[[], TrainingProblem]) -> tuple[Callable, Any]:
    """The step of a problem and the shapes of its arguments; no array is made."""

    def pair() -> tuple[Callable, tuple]:
        problem = make()
        return problem.train_step, (problem.state, problem.batch, problem.key)

    return _abstract(pair)


def _transformer(batch: int) -> tuple[Callable, Any]:
    return of_problem(
        lambda: transformer_problem(num_layers=4, batch_size=batch, dropout_rate=0.0)
    )


def _convnet(batch: int) -> tuple[Callable, Any]:
    return of_problem(
        lambda: convnet_problem(stage_sizes=(2, 2), width=16, batch_size=batch)
    )


def _decoder(batch: int) -> tuple[Callable, Any]:
    return _abstract(lambda: decoder_problem(DecoderSizes(layers=8, batch=batch)))


def _gpt(batch: int) -> tuple[Callable, Any]:
    return of_problem(
        lambda: transformer_problem(
            num_layers=4,
            width=768,
            num_heads=12,
            vocab_size=32768,
            batch_size=batch,
            sequence_length=512,
            dropout_rate=0.0,
        )
    )


def _scanned(sequence: int) -> tuple[Callable, Any]:
    sizes = TransformerSizes(width=1024, heads=16, sequence=sequence)
    return _abstract(lambda: scanned_transformer_problem(sizes))


STEPS = {
    "transformer": Sized("transformer, batch", _transformer, range(2, 65, 2), "64MiB"),
    "convnet": Sized("convolutional net, batch", _convnet, range(8, 257, 8), "32MiB"),
    "decoder": Sized("scanned decoder, batch", _decoder, range(1, 33), "192MiB"),
    "gpt": Sized("GPT of four layers, batch", _gpt, range(4, 129, 4), "6GiB", "h200"),
    "scanned": Sized(
        "scanned transformer, sequence", _scanned, range(256, 4097, 128), "8GiB", "tpu v5e"
    ),
}


def row(sized: Sized) -> list[str]:
    """A step's answer, checked."""
    options = {"budget": sized.budget, "target": sized.target, "donate_argnums": 0}
    start = time.perf_counter()
    found = coop_jax.largest(sized.make, sized.sizes, **options)
    seconds = time.perf_counter() - start
    progress(f"{sized.name}: {found.size} in {seconds:.0f} s")

    def planned(size: int) -> Any:
        step, args = sized.make(size)
        return coop_jax.fit(step, *args, **options)

    alone = planned(found.size)
    assert alone.measured_bytes == found.measured_bytes <= alone.budget_bytes
    largest, needs = str(found.size), "–"
    behind = [size for size in sized.sizes if size > found.size][:MOST_BEHIND]
    for size in behind:
        try:
            plan = planned(size)
        except InfeasibleBudgetError as error:
            needs = format_bytes(error.smallest_bytes)
            progress(f"{sized.name}: {size} needs {needs}")
            break
        progress(f"{sized.name}: {size} fits, {format_bytes(plan.measured_bytes)}")
        largest = str(size)
    else:
        if behind:
            largest = f"at least {largest}"
    sizes = sized.sizes
    return [
        sized.name,
        sized.target or "cpu",
        f"{sizes.start} to {sizes[-1]} by {sizes.step}",
        format_bytes(alone.budget_bytes),
        str(found.size),
        format_bytes(found.measured_bytes),
        largest,
        needs,
        str(found.num_compilations),
        str(alone.num_compilations),
        f"{seconds:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = {STEPS[name].name: row(STEPS[name]) for name in arguments.steps}
    if arguments.write:
        rows = _written() | rows
    rows = {sized.name: rows[sized.name] for sized in STEPS.values() if sized.name in rows}
    text = (
        "`python examples/largest_table.py --write`, each row also by itself with "
        f"`--steps`, Python {platform.python_version()}, jax {jax.__version__}, compiled, "
        f"not run, on two cores of a {platform.machine()} server that other work shared."
        f"\n\n{markdown(list(rows.values()), COLUMNS)}\n"
    )
    if arguments.write:
        RESULTS.write_text(text)
    print(text)


def _written() -> dict[str, list[str]]:
    """The rows of the results, by step."""
    if not RESULTS.exists():
        return {}
    lines = [line for line in RESULTS.read_text().splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines[2:]]
    return {each[0]: each for each in cells}


if __name__ == "__main__":
    main()
