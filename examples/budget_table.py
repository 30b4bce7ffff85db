"""Budget table: what a budget costs, for several networks and budgets on this CPU.

    python examples/budget_table.py [--networks ...] [--budgets 80 60 50] [--write]

Every planned step of a network takes turns with the step as written, in one process;
times are ratios of medians, and the step as written runs a second time under its own
name, so that the table shows how much of a ratio is noise. The last row of a network
asks for far too little, and then for the smallest budget that `InfeasibleBudgetError`
names, which has to work.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import pathlib
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import side_by_side
from models import (
    TrainingProblem,
    convnet_problem,
    mixer_problem,
    transformer_problem,
)
from side_by_side import mebibytes

import coop_jax

# Sizes at which activations are most of what a step needs.
NETWORKS: dict[str, Callable[[], TrainingProblem]] = {
    "transformer-6": lambda: transformer_problem(num_layers=6),
    "transformer-12": lambda: transformer_problem(num_layers=12, width=128, num_heads=4),
    "convnet": lambda: convnet_problem(stage_sizes=(3, 3, 3), width=16),
    "mixer": lambda: mixer_problem(),
}
INFEASIBLE_PERCENT = 5
# With jax 0.10, XLA:CPU drops the barriers of `jax.checkpoint` and merges the
# recomputation back into the forward pass, unless this pass is off. With jax 0.12 the
# barriers of this network stay either way.
KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
COLUMNS = (
    "network",
    "budget",
    "predicted",
    "measured",
    "recomputed FLOPs",
    "step-time ratio",
    "compilations",
)
RESULTS = pathlib.Path(__file__).parent / "results" / "budget_table_cpu.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument(
        "--budgets", nargs="+", type=float, default=[80, 60, 50], metavar="PERCENT"
    )
    parser.add_argument("--repeats", type=int, default=9, help="timed steps each")
    parser.add_argument(
        "--checkpoint", action="store_true", help="add jax.checkpoint (transformer-6)"
    )
    parser.add_argument("--write", action="store_true", help=f"to {RESULTS.name}")
    args = parser.parse_args()

    rows: list[list[str]] = []
    for name in args.networks:
        problem = NETWORKS[name]()
        steps, network_rows = plan_network(problem, args.budgets)
        if args.checkpoint and name == "transformer-6":
            add_checkpoint(problem, steps, network_rows)
        time_steps(problem, steps, network_rows, args.repeats)
        rows += [[name, *cells] for cells in network_rows.values()]
        progress(markdown(rows))
        if args.write:  # After every network: all of them take minutes.
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(f"{header()}\n\n{markdown(rows)}\n")
    print(f"{header()}\n\n{markdown(rows)}")


def plan_network(
    problem: TrainingProblem, budgets: Sequence[float]
) -> tuple[dict[str, Callable], dict[str, list[str]]]:
    """Steps by name, "as written" first, and the cells of their rows.

    Cells are strings in the order of `COLUMNS`, without the network.
    """
    example = problem.state, problem.batch, problem.key
    as_written = jax.jit(problem.train_step, donate_argnums=0)
    compiled = as_written.lower(*example).compile()
    need = side_by_side.step_bytes(compiled)
    steps: dict[str, Callable] = {"as written": compiled, "again": compiled}
    rows = {
        "as written": ["as written", "", mebibytes(need), "", "1.00", "1"],
        "again": ["as written, again (noise)", "", mebibytes(need), "", "", ""],
    }

    for percent in budgets:
        name = f"{percent:g} %"
        budget = int(need * percent / 100)
        try:
            step, cells = plan_step(problem, budget, need)
        except coop_jax.InfeasibleBudgetError as error:
            smallest = mebibytes(error.smallest_bytes)
            cells = [f"infeasible, at least {smallest}", "", "", "", ""]
        else:
            steps[name] = step
        rows[name] = [f"{name} = {mebibytes(budget)}", *cells]

    try:
        plan_step(problem, int(need * INFEASIBLE_PERCENT / 100), need)
    except coop_jax.InfeasibleBudgetError as error:
        smallest = error.smallest_bytes
    else:
        raise AssertionError(f"{problem.name} fits into {INFEASIBLE_PERCENT} %")
    steps["smallest"], cells = plan_step(problem, smallest, need)
    text = (
        f"{INFEASIBLE_PERCENT} %: infeasible, smallest named: "
        f"{mebibytes(smallest)} ({smallest / need:.1%})"
    )
    rows["smallest"] = [text, *cells]
    return steps, rows


def plan_step(
    problem: TrainingProblem, budget: int, need: int
) -> tuple[Callable, list[str]]:
    """A step under a budget in bytes, and its cells from "predicted" on."""
    step = coop_jax.remat_train_step(problem.train_step, budget=budget, donate_argnums=0)
    start = time.perf_counter()
    try:
        plan = step.plan(problem.state, problem.batch, problem.key)
    finally:
        seconds = time.perf_counter() - start
        progress(f"{problem.name}, {budget / need:.1%}: {seconds:.0f} s to plan")
    assert plan.measured_bytes <= budget
    recomputed = plan.recomputed_flops / max(plan.total_flops, 1)
    return step, [
        mebibytes(plan.predicted_bytes),
        f"{mebibytes(plan.measured_bytes)} ({plan.measured_bytes / need:.1%})",
        f"{recomputed:+.1%}",
        "",  # The step-time ratio, once it was run.
        str(plan.num_compilations),
    ]


def add_checkpoint(
    problem: TrainingProblem,
    steps: dict[str, Callable],
    rows: dict[str, list[str]],
) -> None:
    """The hand-placed alternative, and ours at the very bytes that it needs.

    XLA's own count of operations serves for `jax.checkpoint`, which has no plan to ask;
    it is relative to the same count of the step as written.
    """
    as_written: Any = steps["as written"]
    need = side_by_side.step_bytes(as_written)
    checkpointed = transformer_problem(num_layers=6, checkpoint_blocks=True)
    example = problem.state, problem.batch, problem.key
    sizes = []
    for name, options in (
        ("jax.checkpoint per block (nothing_saveable)", None),
        ("the same, xla_disable_hlo_passes=cse_barrier_expander", KEEP_BARRIERS),
    ):
        jitted = jax.jit(
            checkpointed.train_step, donate_argnums=0, compiler_options=options
        )
        compiled = jitted.lower(*example).compile()
        sizes.append(side_by_side.step_bytes(compiled))
        more = flops(compiled) / flops(as_written) - 1
        steps[name] = compiled
        measured = f"{mebibytes(sizes[-1])} ({sizes[-1] / need:.1%})"
        rows[name] = [name, "", measured, f"{more:+.1%} (XLA)", "", "1"]

    name = "coop_jax at those bytes"
    try:
        steps[name], cells = plan_step(problem, sizes[-1], need)
    except coop_jax.InfeasibleBudgetError as error:
        smallest = mebibytes(error.smallest_bytes)
        cells = [f"infeasible, at least {smallest}", "", "", "", ""]
    rows[name] = [f"{name} = {mebibytes(sizes[-1])}", *cells]


def flops(compiled: jax.stages.Compiled) -> float:
    return compiled.cost_analysis()["flops"]


def time_steps(
    problem: TrainingProblem,
    steps: dict[str, Callable],
    rows: dict[str, list[str]],
    repeats: int,
) -> None:
    """Run all steps in turns and fill in their ratios; first losses must agree."""
    progress(f"{problem.name}: timing {len(steps)} steps")
    runs = side_by_side.train(problem, steps, [problem.batch] * (repeats + 1))
    before = runs["as written"]
    for name, run in runs.items():
        # From the same state, so nothing but rounding separates them.
        assert abs(run.losses[0] - before.losses[0]) <= 1e-5 * abs(before.losses[0])
        rows[name][4] = f"{run.median_seconds / before.median_seconds:.2f}"


def header() -> str:
    """The command and what it ran on."""
    packages = ("jax", "jaxlib", "flax", "coop-jax")
    versions = [f"Python {platform.python_version()}"] + [
        f"{name} {importlib.metadata.version(name)}" for name in packages
    ]
    script = pathlib.Path(sys.argv[0]).name
    command = shlex.join([f"examples/{script}", *sys.argv[1:]])
    machine = platform.processor() or platform.machine()
    return (
        f"`python {command}`\n\n"
        f"{', '.join(versions)}; {jax.default_backend().upper()}: {machine}, "
        f"{os.cpu_count()} cores. Step-time ratios are medians of interleaved runs."
    )


def markdown(rows: Sequence[Sequence[str]], columns: Sequence[str] = COLUMNS) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
