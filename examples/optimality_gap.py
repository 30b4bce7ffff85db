"""Optimality gap: the planners against the least recomputation there is.

    python examples/optimality_gap.py [--graphs mlp-4 ...] [--time-limit 60]

For full training steps of up to about 60 operations and random graphs, in pools of 90, 75,
60 and 50 % of what they need without eviction and in the smallest that any planner manages:
the seconds each planner recomputes, in % of the step, the optimum by integer programming
(`tests/oracles`), and "at least": the lower bound that comes with the search's plan. The
optimum knows no fragmentation; the planners pay for theirs. It is over schedules that
recompute in ascending order before each operation; "+" marks a planner that found better in
another order. Where the time limit came first, "a..b" stands for an optimum that is at
least a and, by the best schedule known, at most b.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Traced and compiled, never run.
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

import jax
import numpy as np
import optax
from flax import linen as nn
from models.training import (
    TrainingProblem,
    convnet_problem,
    training_problem,
    transformer_problem,
)
from oracles import random_graphs
from oracles.rematerialization_ilp import least_recomputation
from stored_graph import stored_graph

from coop_jax import planning

ALIGNMENT_BYTES = 64
SHARES = (0.9, 0.75, 0.6, 0.5)
PLANNERS = planning.POLICIES


class Mlp(nn.Module):
    num_layers: int
    width: int = 64

    @nn.compact
    def __call__(self, x: jax.Array, is_training: bool) -> jax.Array:
        for _ in range(self.num_layers - 1):
            x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(10)(x)


def mlp(num_layers: int) -> TrainingProblem:
    images = jax.random.normal(jax.random.key(1), (512, 64))
    labels = jax.random.randint(jax.random.key(2), (512,), 0, 10)
    return training_problem("mlp", Mlp(num_layers), (images, labels), optax.sgd(0.1))


GRAPHS: dict[str, Callable[[], Any]] = {
    "mlp-4": lambda: graph_of(mlp(4)),
    "mlp-6": lambda: graph_of(mlp(6)),
    "convnet": lambda: graph_of(
        convnet_problem(
            stage_sizes=(1,), width=8, image_size=16, batch_size=64,
            optimizer=optax.sgd(0.1),
        )
    ),
    "transformer": lambda: graph_of(
        transformer_problem(
            num_layers=1, width=32, num_heads=2, vocab_size=64, batch_size=8,
            sequence_length=32, dropout_rate=0.0, optimizer=optax.sgd(0.1),
        )
    ),
    "random-30": lambda: random_graph(30, 0),
    "random-50": lambda: random_graph(50, 1),
    "layered-20": lambda: random_graphs.layered(20, 0),
    "layered-30": lambda: random_graphs.layered(30, 1),
    "layered-40": lambda: random_graphs.layered(40, 2),
    "layered-60": lambda: random_graphs.layered(60, 4),
    "layered-100": lambda: random_graphs.layered(100, 3),
}  # fmt: skip


def graph_of(problem: TrainingProblem) -> Any:
    arguments = problem.state, problem.batch, problem.key
    return stored_graph(problem.train_step, arguments, "a100")


def random_graph(num_ops: int, seed: int) -> Any:
    """A forward half with skip connections and a backward half that mirrors it."""
    random = np.random.default_rng(seed)
    half = num_ops // 2
    tensors = {"x": {"bytes": 0, "external": True}}
    operations: list[dict[str, Any]] = []

    def add(name: str, inputs: list[str]) -> None:
        tensors[name] = {"bytes": int(random.integers(1, 9)) << 20}
        operations.append(
            {
                "seconds": float(random.integers(1, 21)) * 1e-3,
                "inputs": list(dict.fromkeys(inputs)),
                "outputs": [name],
            }
        )

    for k in range(half):
        skip = f"f{random.integers(0, k)}" if k > 1 and random.random() < 0.3 else None
        add(f"f{k}", [f"f{k - 1}" if k else "x", *([skip] if skip else [])])
    for k in range(half):
        residual = half - 1 - k
        inputs = [f"b{k - 1}" if k else f"f{half - 1}", f"f{residual}"]
        add(f"b{k}", inputs)
    tensors[f"b{half - 1}"]["output"] = True
    graph, _ = planning.named_graph(tensors, operations)
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--time-limit", type=float, default=60.0, help="per optimum, s")
    arguments = parser.parse_args()
    print(
        "| graph | operations | pool, KiB | of the peak, % | at least | optimum "
        "| oracle, s | " + " | ".join(PLANNERS) + " |"
    )
    print("| --- |" + " ---: |" * (6 + len(PLANNERS)))
    gaps: list[float] = []
    for name in arguments.graphs:
        for row, gap in rows(GRAPHS[name](), arguments.time_limit):
            print(f"| {name} | " + " | ".join(row) + " |", flush=True)
            gaps += [] if gap is None else [gap]
    print(
        f"\n{len(gaps)} proven optima; `{PLANNERS[0]}` recomputes more than that by, in "
        f"% of the step: median {statistics.median(gaps):.2f}, worst {max(gaps):.2f}."
    )


def rows(graph: Any, time_limit: float) -> Iterator[tuple[list[str], float | None]]:
    """Of one graph: cells in the columns' order, without its name; and how far the
    default planner is from the optimum, in % of the step, None if that is not proven."""
    peak = planning.unconstrained(graph).statistics.peak_bytes
    found_smallest = {
        planner: planning.minimum_pool(graph, planner, overhead_limit=10.0)
        for planner in PLANNERS
    }
    smallest = min(least.capacity for least in found_smallest.values())
    pools = [int(peak * share) // ALIGNMENT_BYTES * ALIGNMENT_BYTES for share in SHARES]
    pools = [*(pool for pool in pools if pool > 1.01 * smallest), smallest]
    step_seconds = float(graph.op_seconds.sum())
    for pool in pools:
        plans = {planner: _planned(graph, pool, planner) for planner in PLANNERS}
        again = {
            planner: plan and plan.recompute_seconds for planner, plan in plans.items()
        }
        ours = plans[PLANNERS[0]]
        least = f"{100 * ours.recompute_bound_seconds / step_seconds:.2f}" if ours else "–"
        for planner, smallest_pool in found_smallest.items():
            # A plan made in more room may need less than one that is made for so little.
            if again[planner] is None and smallest_pool.capacity <= pool:
                again[planner] = smallest_pool.schedule.statistics.recompute_seconds
        known = min(seconds for seconds in again.values() if seconds is not None)
        start = time.perf_counter()
        optimum = least_recomputation(
            graph.arrays(),
            pool,
            alignment=ALIGNMENT_BYTES,
            time_limit=time_limit,
            at_most=known,
        )
        took = time.perf_counter() - start
        if optimum is None:
            found, best = "none", known  # A planner found one in another order.
        else:
            best = min(optimum.seconds, known)
            found = f"{100 * best / step_seconds:.2f}"
            if not optimum.is_proven:
                found = f"{100 * optimum.bound / step_seconds:.2f}..{found}"
        cells = [
            "–"
            if seconds is None
            else f"{100 * seconds / step_seconds:.2f}"
            + ("+" if optimum is None and seconds <= best else "")
            for seconds in again.values()
        ]
        shares = [f"{pool / 1024:.0f}", f"{100 * pool / peak:.0f}", least, found]
        gap = None
        if optimum is not None and optimum.is_proven and again[PLANNERS[0]] is not None:
            gap = 100 * (again[PLANNERS[0]] - best) / step_seconds
        yield [str(graph.num_ops), *shares, f"{took:.1f}", *cells], gap


def _planned(graph: Any, pool: int, planner: str) -> planning.Statistics | None:
    try:
        schedule = planning.plan_graph(graph, pool, planner, overhead_limit=10.0)
    except planning.InfeasiblePoolError:
        return None
    return schedule.statistics


if __name__ == "__main__":
    main()
