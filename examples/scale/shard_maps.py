"""Shard maps: steps with a `shard_map` in them, planned, beside `jax.checkpoint`.

    python examples/scale/shard_maps.py [--target "tpu v5e:2x4"] [--write]

Every step (`scale/shard_map_steps.py`) on 8 devices: as written, with its layers under two
policies of `jax.checkpoint`, and planned for the bytes of each policy and for the fewest
that work. Bytes are XLA's for one device. Without a target the devices are host devices,
and all versions run in turns, three steps from the same state, whose losses are compared.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_DEVICES = 8
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={_DEVICES}"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax  # noqa: E402
import numpy as np  # noqa: E402
from budget_table import markdown, progress  # noqa: E402

from coop_jax import InfeasibleBudgetError, remat_train_step, targets  # noqa: E402
from coop_jax.compile.traced_step import TracedStep  # noqa: E402
from coop_jax.xla.memory_figures import memory_figures  # noqa: E402
from scale.shard_map_steps import STEPS  # noqa: E402

RESULTS = pathlib.Path(__file__).parents[1] / "results"
MIB = 2**20
_TURNS, _NUM_STEPS = 5, 3
# Layers (of a stage), batch (or microbatches), length and width.
SIZES = {
    "cpu": {
        "ring attention": (4, 4, 512, 64),
        "pipeline": (2, 8, 256, 128),
        "averaged gradients": (6, 64, 64, 128),
    },
    "tpu": {
        "ring attention": (8, 4, 8192, 1024),
        "pipeline": (2, 16, 4096, 1024),
        "averaged gradients": (8, 64, 1024, 1024),
    },
}
POLICIES = ("nothing_saveable", "dots_saveable")
COLUMNS = "step, version, MiB, of as written, predicted MiB, compilations".split(", ")
MEASURED = "time ×, largest difference of the losses".split(", ")


def checkpointed(policy: str) -> Callable[[Callable], Callable]:
    saves = getattr(jax.checkpoint_policies, policy)
    return lambda fn: jax.checkpoint(fn, policy=saves)


def materialized(shapes: Any) -> Any:
    """Arrays of these shapes and shardings: small normal numbers, moments zero."""
    (weights, moments), x = shapes
    generator = np.random.default_rng(0)

    def normal(s: Any, scale: float) -> Any:
        values = scale * generator.normal(size=s.shape)
        return jax.device_put(values.astype(s.dtype), s.sharding)

    zeros = jax.tree.map(
        lambda s: jax.device_put(np.zeros(s.shape, s.dtype), s.sharding), moments
    )
    return (jax.tree.map(lambda s: normal(s, 0.05), weights), zeros), normal(x, 1.0)


class Versions:
    """The versions of one step, compiled."""

    def __init__(self, name: str, mesh: Any, sizes: tuple[int, ...]) -> None:
        def made(wrap: Callable) -> tuple[Callable, tuple]:
            return STEPS[name](mesh, wrap, *sizes)

        self.step, self.args = made(lambda fn: fn)
        self.compiled = {"as written": self._compiled(self.step)}
        for policy in POLICIES:
            self.compiled[policy] = self._compiled(made(checkpointed(policy))[0])
        self.planned: dict[str, Any] = {}
        self.plans: dict[str, Any] = {}
        for policy in POLICIES:
            budget = memory_figures(self.compiled[policy]).total_bytes
            self._plan(f"coop_jax, bytes of {policy}", budget)
        try:
            self._plan("coop_jax, one byte", 1)
        except InfeasibleBudgetError as error:
            self._plan("coop_jax, the fewest bytes", error.smallest_bytes)

    def _compiled(self, step: Callable) -> Any:
        traced = TracedStep.trace(step, {"donate_argnums": 0}, self.args, {})
        return traced.compile_lowered(traced.lower_as_written())

    def _plan(self, name: str, budget: int) -> None:
        planned = remat_train_step(self.step, budget=budget, donate_argnums=0)
        self.plans[name] = planned.plan(*self.args)
        self.planned[name] = planned
        progress(f"{name}: {self.plans[name].measured_bytes / MIB:.2f} MiB")

    def rows(self) -> list[list[str]]:
        known = {name: memory_figures(c).total_bytes for name, c in self.compiled.items()}
        whole = known["as written"]
        rows = [[name, *_sizes(size, whole), "", ""] for name, size in known.items()]
        for name, plan in self.plans.items():
            predicted = f"{(plan.predicted_bytes or plan.measured_bytes) / MIB:.2f}"
            sizes = _sizes(plan.measured_bytes, whole)
            rows.append([name, *sizes, predicted, str(plan.num_compilations)])
        return rows

    def measured(self) -> list[list[str]]:
        """Step times relative to the step as written, and differences of losses."""
        planned = {n: p.lower(*self.args).compile() for n, p in self.planned.items()}
        versions = self.compiled | planned
        seconds: dict[str, list[float]] = {name: [] for name in versions}
        losses: dict[str, np.ndarray] = {}
        for turn in range(_TURNS + 1):
            for name, compiled in versions.items():
                state, x = materialized(self.args)
                jax.block_until_ready((state, x))
                start, values = time.perf_counter(), []
                for _ in range(_NUM_STEPS):
                    state, loss = compiled(state, x)
                    values.append(float(loss))
                if turn:  # The first one warms up.
                    seconds[name].append(time.perf_counter() - start)
                losses[name] = np.array(values)
        medians = {name: statistics.median(s) for name, s in seconds.items()}
        wanted = losses["as written"]
        return [
            [
                f"{medians[name] / medians['as written']:.2f}",
                f"{np.abs(losses[name] / wanted - 1).max():.0e}",
            ]
            for name in versions
        ]


def _sizes(num_bytes: int, whole: int) -> list[str]:
    return [f"{num_bytes / MIB:.2f}", f"{num_bytes / whole:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", help="of `targets.mesh`; default: host devices")
    parser.add_argument("--step", choices=STEPS, action="append")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    kind, mesh = "cpu", None
    if arguments.target:
        kind, mesh = "tpu", targets.mesh(arguments.target, {"d": _DEVICES})
    else:
        types = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((_DEVICES,), ("d",), axis_types=types)
    rows = []
    for name in arguments.step or STEPS:
        progress(name)
        versions = Versions(name, mesh, SIZES[kind][name])
        cells = versions.rows()
        if kind == "cpu":
            cells = [[*c, *m] for c, m in zip(cells, versions.measured(), strict=True)]
        rows += [[name, *c] for c in cells]
    where = f"{arguments.target}, {_DEVICES} devices, compiled, not run,"
    option = f' --target "{arguments.target}"' if arguments.target else ""
    if kind == "cpu":
        where = f"{_DEVICES} host devices, compiled and run, medians of {_TURNS} turns,"
    text = (
        f"`python examples/scale/shard_maps.py{option} --write`, Python "
        f"{platform.python_version()}, jax {jax.__version__}, {where} on two cores of a "
        f"{platform.machine()} server that other work shared; bytes are per device.\n\n"
    ) + markdown(rows, [*COLUMNS, *MEASURED] if kind == "cpu" else COLUMNS)
    print(text)
    if arguments.write:
        (RESULTS / f"shard_maps_{kind}.md").write_text(text)


if __name__ == "__main__":
    main()
