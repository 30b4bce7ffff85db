"""Loops table: scanned models and other loops under policies and under budgets.

    python examples/loops_table.py [--target cpu] [--steps ...] [--budgets 10] [--write]
    python examples/loops_table.py --plot

Rows: the step as written, every `jax.checkpoint` policy for the body of its loop, and
coop_jax at the bytes of each policy, half way between, and at the smallest budget; or at a
number of budgets from 95 % of the step as written to the smallest, evenly on a logarithmic
scale. *Modelled ×* is the time of the instructions that the executable consists of, at the
target's rates (`coop_jax.xla.executable_seconds`), relative to the step as written, and
*FLOPs ×* their products alone. On CPU all versions run in turns, every other turn
backwards; *measured ×* is the median over the turns of a version's time relative to the
step as written in the same turn, with the quartiles. Rows with one and the same plan are
timed once. `--plot` draws the committed tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import itertools

import jax
import jax.numpy as jnp
import loops_picture
from budget_table import markdown, progress
from models.loops import Step, accumulated, recurrent, simulation
from models.scanned_decoder import DecoderSizes, decoder_problem
from models.scanned_transformer import TransformerSizes, scanned_transformer_problem

import coop_jax
from coop_jax import InfeasibleBudgetError
from coop_jax.compile.traced_step import TracedStep
from coop_jax.targets import named
from coop_jax.xla import absent_devices
from coop_jax.xla.executable_seconds import Work, executable_work
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
ROUNDS = 11
LARGEST_BUDGET = 0.95


@dataclasses.dataclass
class Row:
    """A version of a step."""

    name: str
    total_bytes: int
    compiled: Any
    work: Work
    note: str = ""
    seconds: list[float] = dataclasses.field(default_factory=list)

    def measured(self, unmodified: Row) -> str:
        """The median of the times relative to those of another row, and the quartiles."""
        pairs = zip(self.seconds, unmodified.seconds, strict=True)
        low, median, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        return f"{median:.2f} ({low:.2f} to {high:.2f})"


def decoder(sizes: DecoderSizes) -> Callable[[Any], Step]:
    def make(policy: Any) -> Step:
        return decoder_problem(sizes, policy, is_wrapped=policy is not None)

    return make


def transformer(policy: Any) -> Step:
    def wrap(layer: Callable) -> Callable:
        return layer if policy is None else jax.checkpoint(layer, policy=policy)

    return scanned_transformer_problem(TransformerSizes(), wrap)


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
        "transformer, 16 layers": transformer,
        "decoder, 12 layers": decoder(DecoderSizes()),
        "recurrent, 2000 steps": recurrent,
        "simulation, 10000 steps": simulation,
        "accumulation, 8 microbatches": accumulated,
    },
    "h200": {"decoder, 16 layers": decoder(LARGE)},
    "tpu v5e": {"decoder, 16 layers": decoder(LARGE)},
}


class Versions:
    """The versions of one step, as rows.

    Arguments:
        target: the device, which may be absent.
        make: `make(policy) -> (step, arguments)`.
    """

    def __init__(self, target: str, make: Callable[[Any], Step]):
        self._make = make
        self.step, args = make(None)
        if target != "cpu":
            args = absent_devices.placed(args, absent_devices.named_device(target))
        self.args = args
        self._target = named(target)

    def under(self, name: str, policy: Any) -> Row:
        """The step under a policy."""
        traced = self._traced(self._make(policy)[0])
        # A body's recomputation and the forward loop are in different computations:
        # nothing merges them, and the removal of barriers may stay on.
        compiled = traced.compile_lowered(traced.lower_as_written())
        total_bytes = memory_figures(compiled).total_bytes
        progress(f"{name}: {total_bytes}")
        return Row(name, total_bytes, compiled, self._work(compiled))

    def planned(self, budget: int) -> Row:
        """The step under a budget."""
        fitted = coop_jax.remat_train_step(self.step, budget=budget, donate_argnums=0)
        start = time.perf_counter()
        plan = fitted.plan(*self.args)
        took = time.perf_counter() - start
        assert plan.measured_bytes is not None
        assert plan.measured_bytes <= budget, "a budget was exceeded"
        compiled = fitted.lower(*self.args).compile()
        row = Row(
            f"coop_jax, {budget / 2**20:.1f} MiB",
            plan.measured_bytes,
            compiled,
            self._work(compiled),
            "; ".join(map(described, plan.loops)),
        )
        progress(f"budget {budget}: {plan.measured_bytes}, planned in {took:.0f} s")
        return row

    def smallest_budget(self) -> int | None:
        """The budget that the error names."""
        fitted = coop_jax.remat_train_step(self.step, budget=1, donate_argnums=0)
        try:
            fitted.plan(*self.args)
        except InfeasibleBudgetError as error:
            return error.smallest_bytes
        return None

    def _traced(self, step: Callable) -> TracedStep:
        return TracedStep.trace(step, {"donate_argnums": 0}, self.args, {})

    def _work(self, compiled: Any) -> Work:
        work = executable_work(compiled, self._target)
        assert work is not None
        return work


def rows_of(versions: Versions, num_budgets: int | None) -> list[Row]:
    rows = [versions.under(name, policy) for name, policy in POLICIES.items()]
    smallest = versions.smallest_budget()
    by_hand = sorted({row.total_bytes for row in rows})
    if num_budgets is None:
        between = [(a + b) // 2 for a, b in itertools.pairwise(by_hand)]
        budgets = {*by_hand[:-1], *between}
    else:
        assert smallest is not None
        first = LARGEST_BUDGET * by_hand[-1]
        ratio = (smallest / first) ** (1 / (num_budgets - 1))
        budgets = {int(first * ratio**i) for i in range(num_budgets - 1)}
    if smallest is not None:
        budgets.add(smallest)
    return rows + [
        versions.planned(budget)
        for budget in sorted(budgets, reverse=True)
        if smallest is None or budget >= smallest
    ]


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
    timed: dict[tuple, Row] = {}
    for row in rows:
        timed.setdefault((row.total_bytes, row.work, row.note), row)
    for turn in range(1 + ROUNDS):
        for row in list(timed.values())[:: -1 if turn % 2 else 1]:
            copies = jax.tree.map(jnp.copy, args)
            jax.block_until_ready(copies)
            start = time.perf_counter()
            jax.block_until_ready(row.compiled(*copies))
            if turn:  # the first turn touches fresh memory
                row.seconds.append(time.perf_counter() - start)
    for row in rows:
        row.seconds = timed[row.total_bytes, row.work, row.note].seconds


def table(target: str, name: str, num_budgets: int | None) -> str:
    versions = Versions(target, STEPS[target][name])
    rows = rows_of(versions, num_budgets)
    is_timed = target == "cpu"
    if is_timed:
        measure(rows, versions.args)
    columns = ["version", "XLA's bytes, MiB", "FLOPs ×", "modelled ×", "iterations"]
    if is_timed:
        columns.insert(-1, "measured ×")
    shown = []
    for row in sorted(rows, key=lambda row: -row.total_bytes):
        flops = row.work.product_flops / (rows[0].work.product_flops or 1)
        modelled = row.work.seconds / rows[0].work.seconds
        cells = [row.name, f"{row.total_bytes / 2**20:.1f}"]
        cells += [f"{flops:.3f}" if flops else "–", f"{modelled:.3f}"]
        if is_timed:
            cells.append(row.measured(rows[0]))
        cells.append(row.note)
        shown.append(cells)
    return f"### {name}\n\n{markdown(shown, columns)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", choices=STEPS, default="cpu")
    parser.add_argument("--steps", nargs="*")
    parser.add_argument("--budgets", type=int, metavar="NUMBER", help="from 95 % down")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--plot", action="store_true", help="the committed tables")
    arguments = parser.parse_args()
    if arguments.plot:
        loops_picture.plot_all(RESULTS)
        return
    target, names = arguments.target, arguments.steps or list(STEPS[arguments.target])
    suffix = "" if arguments.budgets is None else "_budgets"
    path = RESULTS / f"loops_{target.replace(' ', '_')}{suffix}.md"
    tables: list[str] = []
    for name in names:
        tables.append(table(target, name, arguments.budgets))
        text = "\n\n".join([head(target, names, arguments.budgets), *tables]) + "\n"
        if arguments.write:  # After every step: all of them take long.
            path.write_text(text)
    print(text)


def head(target: str, names: list[str], num_budgets: int | None) -> str:
    command = ["examples/loops_table.py", "--target", target]
    if names != list(STEPS[target]):
        command += ["--steps", *names]
    if num_budgets is not None:
        command += ["--budgets", str(num_budgets)]
    how = "" if target == "cpu" else " Compiled, not run."
    return (
        f"`python {shlex.join(command)}`, "
        f"Python {platform.python_version()}, jax {jax.__version__}, "
        f"two cores of a {platform.machine()} server.{how}"
    )


if __name__ == "__main__":
    main()
