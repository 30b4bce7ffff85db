"""Host devices: a decoder and a convolutional net on 8 host devices, under ten budgets.

    python examples/scale/host_devices.py [--model decoder] [--style fsdp] [--write]

Every style of sharding (`scale/sharding_styles.py`) is compiled as written, planned for ten
budgets from 95 % of its bytes to the smallest that works, and trained for 20 steps: as
written on one device and on the mesh, and under every plan. Bytes are XLA's for one device.
*Planning* is the processor time from the traced step to the plan's executable, the step
as written and its tagged program included, over that in which XLA compiles the step as
written right before.
*Difference* is that of the losses, relative, and of the state, the norm of the difference
over the norm, the larger of the two.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_DEVICES = 8
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={_DEVICES}"
)
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from budget_table import markdown, progress  # noqa: E402

from coop_jax import InfeasibleBudgetError  # noqa: E402
from coop_jax.compile.traced_step import TracedStep  # noqa: E402
from coop_jax.pipeline import as_written_for, fit_step  # noqa: E402
from coop_jax.xla.buffer_assignment import published_module  # noqa: E402
from coop_jax.xla.memory_figures import memory_figures  # noqa: E402
from scale.sharding_styles import MODELS, sharded, styles_of  # noqa: E402

RESULTS = pathlib.Path(__file__).parents[1] / "results"
_FILE = RESULTS / "host_devices_cpu.jsonl"
STEPS, BUDGETS, LARGEST = 20, 10, 0.95
MIB = 2**20
_KINDS = "all-gather all-reduce all-to-all collective-permute reduce-scatter".split()
_COLUMNS = (
    "model, style, as written MiB, compiled s, budgets, largest bytes / budget, predicted: "
    "median, worst, compilations: median, most, planning / compile: median, most, "
    "collectives as written, most added, mesh / one device, planned / mesh"
).split(", ")


@dataclasses.dataclass(frozen=True)
class Row:
    """A plan for one budget: XLA's bytes over the budget, predicted over XLA's bytes,
    compilations, planning over compile time, collectives, largest difference."""

    part: float
    of_budget: float
    predicted: float
    compilations: int
    planning: float
    collectives: collections.Counter[str]
    difference: float


def trained(step: Callable, args: tuple) -> tuple[list[float], Any]:
    """The losses of the steps, and the last state."""
    state, losses = jax.tree.map(lambda x: x.copy(), args[0]), []
    placed = jax.tree.map(lambda x: x.sharding, state)
    for _ in range(STEPS):
        state, loss = step(state, *args[1:])
        losses.append(float(loss))
        # XLA may divide results otherwise than the arguments that they replace.
        state = jax.device_put(state, placed)
    return losses, [np.asarray(x, np.float64) for x in jax.tree.leaves(state)]


def difference(run: tuple[list[float], Any], other: tuple[list[float], Any]) -> float:
    """The larger of the largest relative one of the losses and that of the states."""
    losses, wanted = np.array(run[0]), np.array(other[0])
    of_state = np.sqrt(
        sum(((a - b) ** 2).sum() for a, b in zip(run[1], other[1], strict=True))
    )
    norm = np.sqrt(sum((b**2).sum() for b in other[1]))
    return float(max(np.abs(losses / wanted - 1).max(), of_state / norm))


def collectives(compiled: Any) -> collections.Counter[str]:
    """The collectives of a step without loops, by kind."""
    module = published_module(compiled)
    assert module is not None
    opcodes = (i.opcode.removesuffix("-start") for i in module.instructions.values())
    return collections.Counter(opcode for opcode in opcodes if opcode in _KINDS)


class Sweep:
    """One style of one model: the step as written, and its plans."""

    def __init__(self, model: str, style: str, **sizes: Any) -> None:
        self._step, self.args = sharded(model, style, jax.devices()[:_DEVICES], **sizes)
        self._compiled()  # The first compilation of a process takes longer.
        compiled, seconds = self._compiled()
        self.seconds = [seconds]
        self.needed = memory_figures(compiled).total_bytes
        self.collectives = collectives(compiled)
        self.run = trained(compiled, self.args)
        jax.clear_caches()  # Or planning would not compile the step as written again.
        self.traced = TracedStep.trace(self._step, {"donate_argnums": 0}, self.args, {})
        start = time.process_time()
        # As for every budget below what the step needs.
        self._both = as_written_for(self.traced, int(LARGEST * self.needed))
        self._before = (time.process_time() - start) / seconds

    def _compiled(self) -> tuple[Any, float]:
        """The step as written, compiled, and the seconds that took."""
        jax.clear_caches()
        lowered = jax.jit(self._step, donate_argnums=0).lower(*self.args)
        start = time.process_time()
        compiled = lowered.compile()
        return compiled, time.process_time() - start

    def smallest(self) -> int:
        """The smallest budget that works."""
        try:
            fit_step(self.traced, 1, "search", progress, self._both)
        except InfeasibleBudgetError as error:
            return error.smallest_bytes
        raise AssertionError("no step fits into one byte")

    def planned(self, budget: int) -> Row:
        """The plan for a budget, made without those of others, and trained."""
        # Other work on the machine comes and goes.
        self.seconds.append(self._compiled()[1])
        start = time.process_time()
        fitted = fit_step(self.traced, budget, "search", lambda line: None, self._both)
        planning = self._before + (time.process_time() - start) / self.seconds[-1]
        measured = memory_figures(fitted.compiled).total_bytes
        predicted = fitted.plan.predicted_bytes or measured
        return Row(
            budget / self.needed,
            measured / budget,
            predicted / measured,
            fitted.plan.num_compilations,
            planning,
            collectives(fitted.compiled),
            difference(trained(fitted.compiled, self.args), self.run),
        )

    def rows(self, count: int = BUDGETS) -> list[Row]:
        """The plans of budgets from the largest to the smallest."""
        budgets = np.linspace(LARGEST * self.needed, self.smallest(), count)
        return [self.planned(int(np.ceil(budget))) for budget in budgets]


def one_device(model: str, **sizes: Any) -> tuple[list[float], Any]:
    """The training as written on one device."""
    problem = MODELS[model](**sizes)
    step = jax.jit(problem.train_step)
    return trained(step, (problem.state, problem.batch, problem.key))


def swept(model: str, style: str, single: tuple[list[float], Any]) -> list[str]:
    """The cells of one style."""
    sweep = Sweep(model, style)
    rows = sweep.rows()
    for row in rows:
        progress(f"{model}, {style}: {row}")
    errors = [abs(row.predicted - 1) for row in rows]
    added = {
        kind: max(row.collectives[kind] - sweep.collectives[kind] for row in rows)
        for kind in _KINDS
    }
    compilations = [row.compilations for row in rows]
    planning = [row.planning for row in rows]
    return [
        model,
        style,
        f"{sweep.needed / MIB:.2f}",
        f"{statistics.median(sweep.seconds):.1f}",
        f"{len(rows)}: {rows[0].part:.0%} to {rows[-1].part:.0%}",
        f"{max(row.of_budget for row in rows):.4f}",
        f"{statistics.median(errors):.1%}",
        f"{max(errors):.1%}",
        f"{statistics.median(compilations):g}",
        f"{max(compilations)}",
        f"{statistics.median(planning):.1f}",
        f"{max(planning):.1f}",
        _listed(sweep.collectives),
        _listed(added),
        f"{difference(sweep.run, single):.0e}",
        f"{max(row.difference for row in rows):.0e}",
    ]


def _listed(counts: Any) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()) if n > 0) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--style", action="append")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    for model in arguments.model or MODELS:
        single = one_device(model)
        for style in arguments.style or styles_of(model):
            row = swept(model, style, single)
            progress(" | ".join(row))
            if arguments.write:
                with _FILE.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    if arguments.write:
        text = written()
        (RESULTS / "host_devices_cpu.md").write_text(text)
        print(text)


def written() -> str:
    """The table of the rows that were measured last, the styles in their order."""
    rows = {tuple(row[:2]): row for row in map(json.loads, _FILE.read_text().splitlines())}
    styles = [(model, style) for model in MODELS for style in styles_of(model)]
    missing = ", ".join(" ".join(key) for key in styles if key not in rows) or "none"
    table = markdown([rows[key] for key in styles if key in rows], _COLUMNS)
    return (
        f"`python examples/scale/host_devices.py --write`, Python "
        f"{platform.python_version()}, jax {jax.__version__}, {_DEVICES} host devices on "
        f"two cores of a {platform.machine()} server that other work shared, compiled and "
        f"run; figures are per device. Not run: {missing}.\n\n{table}\n"
    )


if __name__ == "__main__":
    main()
