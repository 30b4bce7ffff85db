"""Plans are those on record: a change of structure changes none of them.

Where a change of the planner is meant to change plans, record them again and say so in the
changelog: `PYTHONPATH=.:tests:examples python
tests/plan/test_unchanged_plans.py`, once for each version of JAX.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import pytest
import steps
from models.training import convnet_problem, transformer_problem
from optimality_gap import random_graph

from coop_jax import planning
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import fit_step
from coop_jax.xla import absent_devices

RECORD = Path(__file__).with_name("unchanged_plans.json")
PLANNERS = ("search", "lookahead", "coop", "dtr", "dte")
# Operations, seed and part of what the graph needs unplanned.
GRAPHS = [
    (20, 0, 0.7),
    (20, 1, 0.5),
    (30, 2, 0.6),
    (40, 3, 0.5),
    (60, 4, 0.4),
    (80, 5, 0.6),
    (100, 6, 0.5),
    (150, 7, 0.7),
    (200, 8, 0.4),
    (400, 9, 0.6),
]


def digest(*schedules: Any) -> str:
    """Steps and addresses of plans, in 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for schedule in schedules:
        sha.update(schedule.steps.tobytes())
        sha.update(schedule.placements.tobytes())
    return sha.hexdigest()[:16]


def digest_of_graph(num_ops: int, seed: int, part: float) -> str:
    graph = random_graph(num_ops, seed)
    needed = planning.unconstrained(graph, "lookahead").statistics.max_live_bytes
    schedules = []
    for planner in PLANNERS:
        try:
            schedules.append(planning.plan_graph(graph, int(part * needed), planner))
        except planning.InfeasiblePoolError:
            continue
    assert schedules, "no planner kept the pool"
    return digest(*schedules)


def mlp() -> tuple[Any, tuple]:
    return steps.mlp_step, steps.mlp_arguments(layers=6, batch=512, width=64)


def attention() -> tuple[Any, tuple]:
    problem = transformer_problem(num_layers=2, width=64, num_heads=2, sequence_length=64)
    return problem.train_step, (problem.state, problem.batch, problem.key)


def convolutions() -> tuple[Any, tuple]:
    problem = convnet_problem(stage_sizes=(1, 1), width=16, batch_size=16)
    return problem.train_step, (problem.state, problem.batch, problem.key)


def feed_forward() -> tuple[Any, tuple]:
    """Large enough that a TPU does not keep all of it on the chip."""
    return steps.adam_step, steps.adam_shapes()


STEPS = {f.__name__: f for f in (mlp, attention, convolutions, feed_forward)}
COMPILED = [
    ("mlp", "cpu"),
    pytest.param("attention", "cpu", marks=pytest.mark.slow),
    pytest.param("convolutions", "cpu", marks=pytest.mark.slow),
    pytest.param("feed_forward", "h200", marks=steps.NEEDS_CUDA),
    pytest.param("feed_forward", "tpu v5e", marks=steps.NEEDS_TPU),
]


def digest_of_step(name: str, target: str) -> str:
    """Of the plan at 85 % of what the step needs."""
    fn, arguments = STEPS[name]()
    if target != "cpu":
        device = absent_devices.named_device(target)
        shapes = jax.eval_shape(lambda x: x, arguments)
        arguments = absent_devices.placed(shapes, device)
    step = TracedStep.trace(fn, {"donate_argnums": (0,)}, arguments, {})
    fitted = fit_step(step, "85%", "search", lambda line: None)
    assert fitted.candidate is not None, "the step was planned"
    return digest(fitted.candidate.schedule)


def key_of(name: str, target: str) -> str:
    return f"{name} on {target}, jax {jax.__version__}"


@pytest.mark.parametrize(("num_ops", "seed", "part"), GRAPHS)
def test_of_graphs(num_ops, seed, part):
    recorded = json.loads(RECORD.read_text())["graphs"]
    assert digest_of_graph(num_ops, seed, part) == recorded[f"{num_ops}, {seed}, {part}"]


@pytest.mark.parametrize(("name", "target"), COMPILED)
def test_of_compiled_steps(name, target):
    recorded = json.loads(RECORD.read_text())["steps"]
    key = key_of(name, target)
    if key not in recorded:
        pytest.skip(f"no plan on record for {key}: what XLA stores differs by version")
    assert digest_of_step(name, target) == recorded[key]


def main() -> None:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"steps": {}}
    record["graphs"] = {f"{n}, {s}, {p}": digest_of_graph(n, s, p) for n, s, p in GRAPHS}
    for case in COMPILED:
        name, target = getattr(case, "values", case)
        try:
            record["steps"][key_of(name, target)] = digest_of_step(name, target)
        except ImportError as error:
            print(f"{name} on {target}: left as it was ({error})")
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
