"""Findings: the measurements behind two decisions of the design (see docs/xla-notes.md).

    python examples/findings.py [--networks ...]

For every network of the budget table: XLA's temporaries of the step as written and of the
flattened program, what the graph predicts for the latter, and the smallest pool that can
be planned when operations run in the program's order and in XLA's.
"""

from __future__ import annotations

import argparse
import dataclasses

import jax
from budget_table import NETWORKS

from coop_jax import backends
from coop_jax.compile.traced_step import TracedStep
from coop_jax.graph import stored_values
from coop_jax.graph.step_graph import build_graph
from coop_jax.plan.planner import planner_options, smallest_pool, unconstrained
from coop_jax.targets import named
from coop_jax.xla.memory_figures import memory_figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    print(f"jax {jax.__version__}, {jax.default_backend()}; MiB")
    print(
        "| network | temporaries as written | flattened | predicted "
        "| smallest pool, program's order | XLA's order |"
    )
    print("| --- |" + " ---: |" * 5)
    for name in parser.parse_args().networks:
        print(f"| {name} | " + " | ".join(f"{b / 2**20:.1f}" for b in measure(name)) + " |")


def measure(name: str) -> list[int]:
    """The figures of one row, in bytes."""
    problem = NETWORKS[name]()
    arguments = problem.state, problem.batch, problem.key
    step = TracedStep.trace(
        problem.train_step,
        {"donate_argnums": 0},
        arguments,
        {},
    )
    as_written = jax.jit(problem.train_step, donate_argnums=0).lower(*arguments).compile()
    flattened = step.compile(stored_values.tag(step.program))
    stored = backends.stored_values(step.program, flattened)
    target = named("cpu")
    options = planner_options("coop", target.alignment_bytes)
    graph = build_graph(step.program, stored, target)
    program_order = build_graph(
        step.program, dataclasses.replace(stored, position={}), target
    )
    return [
        memory_figures(as_written).temp_bytes,
        memory_figures(flattened).temp_bytes,
        unconstrained(graph, options).statistics.peak_bytes,
        smallest_pool(program_order, options).pool_bytes,
        smallest_pool(graph, options).pool_bytes,
    ]


if __name__ == "__main__":
    main()
