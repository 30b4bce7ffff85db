"""Loops mixtures: k of L iterations that keep less, against the line between all and none.

    python examples/loops_mixtures.py [--target cpu] [--write]

Of a scanned model with L layers, all layers are planned at one choice of what they keep,
all at the next, and a quarter, a half and three quarters of them at the next and the others
at the one. *Against the line* is XLA's bytes relative to the straight line between the two
plans in which all layers do the same. Choices whose plans are nearer to each other than a
fiftieth of the bytes of the step as written are left out. Nothing is run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import platform
import shlex
from collections.abc import Iterator
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from budget_table import markdown, progress
from loops_table import STEPS

from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.broadcasts_inside import with_broadcasts_inside
from coop_jax.loops.emission import with_planned_pairs
from coop_jax.loops.menu import menu_of
from coop_jax.targets import named
from coop_jax.xla import absent_devices
from coop_jax.xla.executable_seconds import executable_seconds
from coop_jax.xla.memory_figures import memory_figures

RESULTS = pathlib.Path(__file__).parent / "results"
NAMES = {
    "cpu": "transformer, 16 layers",
    "h200": "decoder, 16 layers",
    "tpu v5e": "decoder, 16 layers",
}
QUARTERS = (0, 1, 2, 3, 4)
NEAR = 1 / 50
COLUMNS = (
    "layers that keep more",
    "layers that keep less",
    "XLA's bytes, MiB",
    "on the line, MiB",
    "against the line",
    "modelled ×",
    "on the line",
)


class Scanned:
    """A scanned model on a target, whose one pair of loops is planned by hand."""

    def __init__(self, target: str) -> None:
        step, args = STEPS[target][NAMES[target]](None)
        if target != "cpu":
            args = absent_devices.placed(args, absent_devices.named_device(target))
        self._target = named(target)
        self._traced = TracedStep.trace(step, {"donate_argnums": 0}, args, {})
        self._program = with_broadcasts_inside(self._traced.program)
        [self.choices] = menu_of(self._program, self._target).choices
        as_written = self._traced.compile_lowered(self._traced.lower_as_written())
        self.total_bytes, self.seconds = self._figures(as_written)

    def measured(self, planned: Any) -> tuple[int, float]:
        """XLA's bytes of a plan of the pair, and its seconds as a ratio."""
        program = with_planned_pairs(self._program, [planned])
        total_bytes, seconds = self._figures(self._traced.compile(program))
        progress(f"{[part.count for part in planned.parts]}: {total_bytes}")
        return total_bytes, seconds / self.seconds

    def _figures(self, compiled: Any) -> tuple[int, float]:
        seconds = executable_seconds(compiled, self._target)
        return memory_figures(compiled).total_bytes, seconds or float("nan")


def rows_of(scanned: Scanned) -> Iterator[list[str]]:
    choices = scanned.choices
    length = choices.iteration.pair.length
    alike = choices.corners[: len(choices.hull)]
    near_bytes = NEAR * scanned.total_bytes
    for corner, (more, less) in enumerate(itertools.pairwise(alike)):
        if more.kept_bytes - less.kept_bytes < near_bytes:
            continue
        one_bytes = (more.kept_bytes - less.kept_bytes) // length
        counts = [length * quarter // 4 for quarter in QUARTERS]
        figures = {0: scanned.measured(more), length: scanned.measured(less)}
        for count in counts[1:-1]:
            mixed = choices.between(corner, count * one_bytes)
            figures[count] = scanned.measured(mixed)
        for count in counts:
            line = [
                (a * (length - count) + b * count) / length
                for a, b in zip(figures[0], figures[length], strict=True)
            ]
            total_bytes, ratio = figures[count]
            yield [
                described(length - count, more),
                described(count, less),
                f"{total_bytes / 2**20:.1f}",
                f"{line[0] / 2**20:.1f}",
                f"{100 * (total_bytes / line[0] - 1):+.2f}%",
                f"{ratio:.3f}",
                f"{line[1]:.3f}",
            ]


def described(count: int, planned: Any) -> str:
    kept = planned.parts[0].retained.kept_bytes / 2**20
    return f"{count} of {kept:.2f} MiB" if count else "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", choices=NAMES, default="cpu")
    parser.add_argument("--write", action="store_true")
    target = parser.parse_args().target
    is_written = parser.parse_args().write
    command = shlex.join(["examples/loops_mixtures.py", "--target", target])
    head = (
        f"`python {command}`, Python {platform.python_version()}, jax {jax.__version__}, "
        f"two cores of a {platform.machine()} server: {NAMES[target]}. Compiled, not run."
    )
    text = f"{head}\n\n{markdown(list(rows_of(Scanned(target))), COLUMNS)}\n"
    print(text)
    if is_written:
        name = f"mixtures_of_loops_{target.replace(' ', '_')}.md"
        (RESULTS / name).write_text(text)


if __name__ == "__main__":
    main()
