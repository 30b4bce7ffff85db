"""XLA's own rematerialization: what it costs near a device's memory, and without it.

    python examples/xla_remat.py [--batches 80 96] [--write]

A GPT is compiled for an absent H200 at sizes whose step as written is near the memory or
beyond. With `budget="device"` XLA recomputes by itself what exceeds three quarters of it;
with `budget="no-xla-remat"` it does not, and what does not fit is planned. Nothing is run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from budget_table import markdown, progress
from largest_table import of_problem
from models import transformer_problem

import coop_jax
from coop_jax.base.budget import format_bytes
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import fit_step
from coop_jax.targets import target_of
from coop_jax.trace.kernels import kernel_flops
from coop_jax.xla import absent_devices
from coop_jax.xla.executable_seconds import executable_seconds

RESULTS = pathlib.Path(__file__).parent / "results" / "xla_remat_h200.md"
TARGET = "h200"
COLUMNS = (
    *("batch", "`budget=`", "as written", "the step", "XLA's bytes"),
    *("recomputed by XLA", "price of the executable, s", "×"),
)


def _step(batch: int) -> tuple[Any, Any]:
    """The step of a GPT and the shapes of its arguments."""
    return of_problem(
        lambda: transformer_problem(
            num_layers=4,
            width=2048,
            num_heads=16,
            vocab_size=32768,
            batch_size=batch,
            sequence_length=1024,
            dropout_rate=0.0,
        )
    )


def rematerialized(compiled: Any) -> int:
    """The instructions that XLA made again by itself, by their names."""
    names = re.findall(r"^\s*(?:ROOT )?%?([\w.\-]+) =", compiled.as_text(), re.M)
    return sum(".remat" in name for name in names)


def rows(batch: int) -> list[list[str]]:
    """A batch size with XLA's rematerialization and without."""
    step, args = _step(batch)
    device = absent_devices.named_device(TARGET)
    args = absent_devices.placed(args, device)
    made: list[tuple[list[str], float]] = []
    for budget in ("device", "no-xla-remat"):
        traced = TracedStep.of(
            jax.jit(step, donate_argnums=0),
            *(args, {}),
            xla_rematerializes=budget == "device",
        )
        fitted = fit_step(traced, budget, "search", progress)
        target = target_of(traced.device())
        seconds = executable_seconds(fitted.compiled, target, kernel_flops(traced.program))
        assert seconds is not None, "an absent GPU's module is published"
        plan = fitted.plan
        cells = [
            str(batch),
            f'`"{budget}"`',
            format_bytes(plan.unmodified_bytes),
            "as written" if plan.is_unmodified else "planned",
            format_bytes(plan.measured_bytes or 0),
            str(rematerialized(fitted.compiled)),
            f"{seconds:.3f}",
        ]
        made.append((cells, seconds))
        progress(" | ".join(cells))
    first = made[0][1]
    return [[*cells, f"{seconds / first:.3f}"] for cells, seconds in made]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", nargs="+", type=int, default=[80])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    table = [row for batch in arguments.batches for row in rows(batch)]
    text = (
        f"`python examples/xla_remat.py --write`, Python {platform.python_version()}, jax "
        f"{jax.__version__}, coop-jax {coop_jax.__version__}, {TARGET}, compiled, not run, "
        f"on two cores of a {platform.machine()} server that other work shared.\n\n"
        f"{markdown(table, COLUMNS)}\n"
    )
    if arguments.write:
        RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
