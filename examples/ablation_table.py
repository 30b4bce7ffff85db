"""Ablation table: what every quirk of a backend is worth, on small networks.

    python examples/ablation_table.py [--target cpu] [--quirks ...] [--write]

A step is planned as always, and again with one quirk switched off (`coop_jax.backends`),
under the same number of bytes and at the smallest budget that works. Quirks that change no
plan are seen elsewhere: what the step as written is expected to need, or what a step needs
under `jax.checkpoint`. A quirk that changes neither what is read of a step nor its fences
changes nothing: it is not compiled again. For a target that is not there, XLA's figures are
of a compiled step.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import budget_table
import jax
from budget_table import markdown, progress
from compare.networks import NETWORKS
from models import convnet_problem, mixer_problem, transformer_problem
from paper.networks import gpt3, resnet50, spos, unet
from paper.networks.training_step import DONATED, Scale, TrainingStep

from coop_jax import InfeasibleBudgetError, backends
from coop_jax.backends.backend import Backend
from coop_jax.backends.quirk import Quirk
from coop_jax.compile.as_written import AsWritten, compile_both, unplanned_bytes
from coop_jax.compile.traced_step import TracedStep
from coop_jax.fitted_step import FittedStep
from coop_jax.pipeline import fit_smallest, fit_step
from coop_jax.plan.planner import planner_options
from coop_jax.targets import target_of
from coop_jax.xla import absent_devices
from coop_jax.xla.memory_figures import memory_figures

PART = 0.6  # Of what the step as written needs.
BUDGETS = (f"{PART:.0%}", "smallest")
COLUMNS = (
    "quirk",
    "network",
    "budget",
    "XLA's bytes, MiB",
    "without",
    "predicted, MiB",
    "without",
    "recomputed, ms",
    "without",
)
RESULTS = pathlib.Path(__file__).parent / "results"
Step = tuple[Callable, tuple]


def of_problem(problem: Any) -> Step:
    return problem.train_step, (problem.state, problem.batch, problem.key)


def of_network(built: TrainingStep) -> Step:
    return built.step, built.args


def built(network: Any, sizes: Any) -> Step:
    return of_network(network.training_step(Scale.REDUCED, sizes=sizes))


_GPT_OF_FOUR = gpt3.Sizes(
    batch=8, sequence=512, vocabulary=8192, width=768, layers=4, heads=12
)
NETWORKS_OF: dict[str, dict[str, Callable[[], Step]]] = {
    "cpu": {
        "transformer-6": lambda: of_problem(transformer_problem(num_layers=6)),
        "convnet": lambda: of_problem(convnet_problem(stage_sizes=(3, 3, 3), width=16)),
        "mixer": lambda: of_problem(mixer_problem()),
        "unet": lambda: built(unet, unet.Sizes(2, 124, 156, features=(16, 32, 64))),
    },
    "h200": {
        "unet": lambda: built(unet, unet.Sizes(2, 230, 304, features=(32, 64, 128))),
        "resnet": lambda: built(
            resnet50, resnet50.Sizes(batch=32, image=128, blocks=(2, 2, 2, 2))
        ),
        "gpt": lambda: built(gpt3, _GPT_OF_FOUR),
    },
    "tpu v5e": {
        "gpt": lambda: built(gpt3, _GPT_OF_FOUR),
        "spos": lambda: built(
            spos,
            spos.Sizes(batch=128, channels=(64,) * 4 + (160,) * 4, halving=(4,)),
        ),
        "unet": lambda: built(unet, unet.Sizes(2, 230, 304, features=(32, 64, 128))),
    },
}
# A quirk with no other hooks has no effect on a plan's bytes or recomputation.
_NOT_IN_PLANS = {
    "expected_bytes_as_written",
    "checkpoint_options",
    "checkpoint_in_loops_options",
    "compile",
}
# A quirk with no other hooks changes what is read of a step, and its fences, alone.
_IN_THE_PLAN = {"prepare", "_read", "_attribution", "fence_hints"}


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of one step: XLA's bytes, those predicted, and modelled seconds of recomputation;
    None for what does not exist. `note` replaces XLA's bytes."""

    xla_bytes: int | None = None
    predicted_bytes: int | None = None
    seconds: float | None = None
    note: str = ""

    def cells(self) -> tuple[str, str, str]:
        return (
            self.note or _mebibytes(self.xla_bytes),
            _mebibytes(self.predicted_bytes),
            "" if self.seconds is None else f"{1e3 * self.seconds:.3f}",
        )


def _mebibytes(size: int | None) -> str:
    return "" if size is None else f"{size / 2**20:.1f}"


class Network:
    """A step, planned by one backend or another."""

    def __init__(self, name: str, target: str, step: Step) -> None:
        self.name, self._target = name, target
        self._function, arguments = step
        if target == "cpu":
            self.device = jax.devices()[0]
            self._arguments = arguments
        else:
            self.device = absent_devices.named_device(target)
            shapes = jax.eval_shape(lambda x: x, arguments)
            self._arguments = absent_devices.placed(shapes, self.device)
        self.backend = backends.backend_of(self.device)
        self._traced, self._as_written = self._compiled()
        self.bytes = self._as_written.total_bytes
        self._found: dict[str, Figures] = {}

    def rows(self, quirk: Quirk, budgets: Sequence[str]) -> Iterator[list[str]]:
        """With and without a quirk, wherever it may have an effect."""
        off = backends.without(self.device.platform, quirk.name)
        if "expected_bytes_as_written" in quirk.hooks:
            yield self._row(quirk, "as written", off)
        if not {*quirk.hooks} <= _NOT_IN_PLANS:
            for budget in budgets:
                yield self._row(quirk, budget, off)

    def _row(self, quirk: Quirk, budget: str, off: Backend) -> list[str]:
        if budget not in self._found:
            figures = self._figures(budget, self._traced, self._as_written)
            self._found[budget] = figures
        with_it = self._found[budget]
        with backends.registered(self.device.platform, off):
            without_it = self._without(quirk, budget, with_it)
        pairs = zip(with_it.cells(), without_it.cells(), strict=True)
        row = [quirk.name, self.name, budget, *(cell for pair in pairs for cell in pair)]
        progress(" | ".join(row))
        return row

    def _without(self, quirk: Quirk, budget: str, with_it: Figures) -> Figures:
        if quirk.hooks in (("prepare",), ("compiler_options",)):
            traced, as_written = self._compiled()
        else:
            traced, as_written = self._traced, self._as_written
        if self._is_planned_alike(quirk, traced, budget):
            return with_it
        return self._figures(budget, traced, as_written)

    def _is_planned_alike(self, quirk: Quirk, traced: TracedStep, budget: str) -> bool:
        """Whether the planner gets what it gets with the quirk."""
        hooks = {*quirk.hooks} - {"expected_bytes_as_written"}
        if budget == "as written" or not hooks <= _IN_THE_PLAN:
            return False
        off = backends.backend_of(self.device)
        primitives = [
            [eqn.primitive for eqn in one.program.eqns] for one in (self._traced, traced)
        ]
        if primitives[0] != primitives[1]:
            return False
        program, tagged = self._traced.program, self._as_written.tagged
        stored = [b.stored_values(program, tagged) for b in (self.backend, off)]
        hints = [
            b.fence_hints(program, s)
            for b, s in zip((self.backend, off), stored, strict=True)
        ]
        return stored[0] == stored[1] and vars(hints[0]) == vars(hints[1])

    def _compiled(self) -> tuple[TracedStep, AsWritten]:
        options = {"donate_argnums": DONATED}
        traced = TracedStep.trace(self._function, options, self._arguments, {})
        return traced, compile_both(traced)

    def _figures(self, budget: str, traced: TracedStep, as_written: AsWritten) -> Figures:
        if budget == "as written":
            return self._of_unmodified(traced, as_written)
        try:
            if budget == "smallest":
                fitted = fit_smallest(traced, "search", progress, as_written)
            else:
                limit = int(PART * self.bytes)
                fitted = fit_step(traced, limit, "search", progress, as_written)
        except InfeasibleBudgetError as error:
            return Figures(note=f"does not fit: {_mebibytes(error.smallest_bytes)}")
        return _of_plan(fitted)

    def _of_unmodified(self, traced: TracedStep, as_written: AsWritten) -> Figures:
        backend, tagged = traced.backend, as_written.tagged
        target = target_of(self.device)
        stored = backend.stored_values(traced.program, tagged)
        expected = backend.expected_bytes_as_written(
            traced.program,
            stored,
            target,
            planner_options("search", target.alignment_bytes),
            tagged,
        )
        fixed_bytes = unplanned_bytes(tagged, stored)
        return Figures(as_written.total_bytes, fixed_bytes + expected)


def _of_plan(fitted: FittedStep) -> Figures:
    plan, candidate = fitted.plan, fitted.candidate
    seconds = 0.0 if candidate is None else candidate.schedule.statistics.recompute_seconds
    return Figures(plan.measured_bytes, plan.predicted_bytes, seconds)


def checkpoint_rows(quirk: Quirk) -> Iterator[list[str]]:
    """Bytes under `jax.checkpoint` of the steps of `examples/compare` on a CPU."""
    options = dict(backends.named("cpu").checkpoint_options)
    for name in ("gpt2", "vit"):
        network = NETWORKS[name]
        step, arguments = network.make_step("cpu")(_checkpointed), network.step("cpu").args
        lowered = jax.jit(step, donate_argnums=DONATED).lower(*arguments)
        needed = [
            _mebibytes(memory_figures(lowered.compile(given)).total_bytes)
            for given in (options, None)
        ]
        yield [quirk.name, name, "`jax.checkpoint`", *needed, "", "", "", ""]


def _checkpointed(block: Any, remat: Any = jax.checkpoint, **options: Any) -> Any:
    return remat(block, policy=jax.checkpoint_policies.nothing_saveable, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cpu", choices=NETWORKS_OF)
    parser.add_argument("--networks", nargs="+")
    parser.add_argument("--quirks", nargs="+")
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=BUDGETS)
    parser.add_argument("--write", action="store_true", help="into results/")
    parser.add_argument("--add", action="store_true", help="below the rows in results/")
    args = parser.parse_args()
    all_networks = NETWORKS_OF[args.target]
    networks = [
        Network(name, args.target, all_networks[name]())
        for name in args.networks or all_networks
    ]
    path = RESULTS / f"ablation_{args.target.replace(' ', '_')}.md"
    before = path.read_text() if args.add else ""
    rows = rows_of(before)
    for quirk in networks[0].backend.quirks:
        if args.quirks and quirk.name not in args.quirks:
            continue
        for network in networks:
            rows += network.rows(quirk, args.budgets)
        if "checkpoint_options" in quirk.hooks:
            rows += checkpoint_rows(quirk)
        text = page(args.target, rows, before)
        if args.write or args.add:  # After every quirk: all of them take minutes.
            path.write_text(f"{text}\n")
    print(page(args.target, rows, before))


def rows_of(text: str) -> list[list[str]]:
    """The rows of a page."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def page(target: str, rows: list[list[str]], before: str = "") -> str:
    """The results page; `before`: the one with the first rows, whose command is kept."""
    ran = "" if target == "cpu" else f" An absent {target}: compiled, not run."
    alike: dict[str, bool] = {}
    for quirk, _, _, *figures in rows:
        pairs = zip(figures[::2], figures[1::2], strict=True)
        alike[quirk] = alike.get(quirk, True) and all(a == b for a, b in pairs)
    worthless = [f"`{quirk}`" for quirk, is_alike in alike.items() if is_alike]
    notes = f"Of no effect on these networks: {', '.join(worthless) or 'none'}."
    head = budget_table.header().replace(
        " Step-time ratios are medians of interleaved runs.", f"{ran} Nothing was timed."
    )
    if before:
        head = f"{before.splitlines()[0]} and {head}"
    return f"{head}\n\n{markdown(rows, COLUMNS)}\n\n{notes}"


if __name__ == "__main__":
    main()
