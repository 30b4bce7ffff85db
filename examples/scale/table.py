"""Scale table: steps of large decoders on meshes that are not there, planned and by hand.

    python examples/scale/table.py --row llama3-8b-v5e-16 [--write]

Every version is compiled by XLA for all devices of the mesh, on TPU as far as its buffers,
and nothing is run. Rows: MaxText's policies for the layers, layers divided by hand between
two of them, and coop_jax at budgets, with the weights in one stack and no policy. Bytes are
those of XLA's buffer assignment, of one device. *Price* is the time of the instructions
that one device's executable consists of, at the target's rates
(`coop_jax.xla.executable_seconds`): products, bytes of main memory, and attention kernels,
whose grid counts in full; the links between devices are not in it. *Gathered* are the
results of its collectives.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

# Targets that are not there are only compiled for.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jax
from budget_table import markdown, progress

from coop_jax import InfeasibleBudgetError, targets
from coop_jax.compile.as_written import compile_both
from coop_jax.compile.traced_step import TracedStep
from coop_jax.pipeline import fit_step
from coop_jax.trace.kernels import kernel_flops
from coop_jax.xla.buffer_assignment import published_module
from coop_jax.xla.executable_seconds import executable_work
from coop_jax.xla.loop_trips import loop_trips
from coop_jax.xla.memory_figures import memory_figures
from coop_jax.xla.shapes import leaves, sizes_of
from scale.llama import POLICIES, SIZES, llama_problem

RESULTS = pathlib.Path(__file__).parents[1] / "results"
GIB = 2**30
_COLLECTIVES = tuple(
    "all-gather all-reduce all-to-all collective-permute reduce-scatter".split()
)

_STARTS = "AsyncCollectiveStart"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A row: a step on a mesh.

    Attributes:
        model: of `scale.llama.SIZES`.
        mesh: a name of `coop_jax.targets.mesh`.
        batch: sequences of a device.
        sequence: tokens of each.
        policies: of `scale.llama.POLICIES`.
        by_hand: layers under the first policy, the policies of these and of the others, and
            whether the weights are in two stacks.
        budgets: of coop_jax.
    """

    model: str
    mesh: str
    devices: int
    batch: int
    sequence: int
    policies: tuple[str, ...]
    by_hand: tuple[tuple[int, str, str, bool], ...] = ()
    budgets: tuple[str, ...] = ()


ROWS = {
    "llama3-8b-v5e-16": Recipe(
        "llama3-8b",
        "tpu v5e:4x4",
        16,
        1,
        4096,
        ("full", "save_out_proj", "save_qkv_proj", "minimal", "minimal_with_context"),
        (
            (19, "full", "minimal", False),
            (18, "full", "minimal", False),
            (19, "full", "minimal", True),
            (16, "full", "minimal", True),
        ),
        ("15.75GiB", "15GiB", "14.01GiB", "13.52GiB", "12.51GiB", "12GiB"),
    ),
    "llama2-7b-v5e-256": Recipe(
        "llama2-7b",
        "tpu v5e:16x16",
        256,
        4,
        2048,
        ("full", "save_qkv_proj", "minimal"),
        (),
        ("15.75GiB", "14GiB", "12GiB", "10.08GiB", "8GiB", "6GiB"),
    ),
    "llama3-70b-v5e-256": Recipe(
        "llama3-70b",
        "tpu v5e:16x16",
        256,
        2,
        2048,
        ("full", "save_out_proj", "save_qkv_proj"),
        (),
        # Five that divide what lies between `full` and the limit, at its bytes, and less.
        (
            *("15.75GiB", "15.54GiB", "15.34GiB", "15.13GiB", "14.93GiB"),
            *("14.73GiB", "13GiB"),
        ),
    ),
    "llama3.1-8b-v5e-256": Recipe(
        "llama3-8b", "tpu v5e:16x16", 256, 2, 8192, ("full",), (), ("15.75GiB",)
    ),
    "llama3-8b-h200-8": Recipe(
        "llama3-8b",
        "h200 x8",
        8,
        1,
        4096,
        ("full", "save_qkv_proj", "minimal_with_context"),
        (),
        ("28.9GiB", "27GiB", "25GiB", "23GiB", "21.5GiB", "20GiB", "18.55GiB"),
    ),
}


class Versions:
    """The versions of one row, as cells of a table."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._mesh = targets.mesh(recipe.mesh, {"fsdp": recipe.devices})
        self._make, self._args = self._problem()
        self._traced = self._trace(self._make(lambda layer: layer), self._args)
        self._target = targets.target_of(self._traced.device())
        self._kernels = kernel_flops(self._traced.program)

    def under(self, policy: str) -> list[str]:
        """The step under a policy."""
        return self._written(policy, self._make(_wrapped(policy)), self._args)

    def by_hand(self, first: int, early: str, late: str, *, two: bool) -> list[str]:
        """The step whose first layers are under one policy and the others under another."""
        make, args = self._problem(first, has_two_stacks=two)
        stacks = "two stacks" if two else "slices of one stack"
        others = SIZES[self.recipe.model].layers - first
        name = f"by hand: {first} {early}, {others} {late}, {stacks}"
        return self._written(name, make(_wrapped(early), _wrapped(late)), args)

    def planned(self, budgets: tuple[str, ...]) -> list[list[str]]:
        """The step under budgets, and as written."""
        both = compile_both(self._traced)
        refused = both.compiled is None
        rows = [["as written", f"{both.total_bytes / GIB:.2f}"]]
        rows[0] += ["refused", "–", "–", "–", ""] if refused else self._cost(both.compiled)
        for budget in budgets:
            name = f"coop_jax, {budget.replace('GiB', ' GiB')}"
            start = time.perf_counter()
            try:
                fitted = fit_step(self._traced, budget, "search", progress, both)
            except InfeasibleBudgetError as error:
                least = f"infeasible: at least {error.smallest_bytes / GIB:.2f} GiB"
                rows.append([name, "–", least, "–", "–", "–", ""])
                continue
            plan = fitted.plan
            note = "; ".join(map(_described, plan.loops))
            seconds = time.perf_counter() - start
            assert plan.measured_bytes is not None
            assert plan.measured_bytes <= plan.budget_bytes, "a budget was exceeded"
            row = [name, f"{plan.measured_bytes / GIB:.2f}", *self._cost(fitted.compiled)]
            row[-1] = (
                f"{note}; predicted {plan.predicted_bytes / GIB:.2f}; "
                f"{plan.num_compilations} compilations, {seconds:.0f} s"
            )
            rows.append(row)
        return rows

    def _problem(self, first: int = 0, *, has_two_stacks: bool = False) -> Any:
        recipe = self.recipe
        sizes, batch = SIZES[recipe.model], recipe.batch * recipe.devices
        return llama_problem(
            sizes, self._mesh, batch, recipe.sequence, first, has_two_stacks=has_two_stacks
        )

    def _trace(self, step: Callable, args: tuple) -> TracedStep:
        return TracedStep.trace(step, {"donate_argnums": 0}, args, {})

    def _written(self, name: str, step: Callable, args: tuple) -> list[str]:
        traced = self._trace(step, args)
        compiled = traced.compile_lowered(traced.lower_as_written())
        total_bytes = memory_figures(compiled).total_bytes
        progress(f"{name}: {total_bytes / GIB:.2f} GiB")
        return [name, f"{total_bytes / GIB:.2f}", *self._cost(compiled)]

    def _cost(self, compiled: Any) -> list[str]:
        """Whether the devices hold it, its price, product FLOPs and gathered bytes, and an
        empty note."""
        work = executable_work(compiled, self._target, self._kernels)
        assert work is not None
        refused = getattr(compiled, "is_refused", False)
        return [
            "refused" if refused else "fits",
            f"{work.seconds:.3f}",
            f"{work.product_flops / 1e12:.1f}",
            f"{_gathered_bytes(compiled) / GIB:.0f}",
            "",
        ]


def _wrapped(policy: str) -> Callable[[Callable], Callable]:
    # In a scan nothing is merged with the forward loop: `prevent_cse=False`, as in MaxText.
    return lambda layer: jax.checkpoint(layer, policy=POLICIES[policy], prevent_cse=False)


def _gathered_bytes(compiled: Any) -> int:
    """Bytes of the results of all collectives of one run on one device.

    XLA:TPU puts the parts of an asynchronous collective into several fusions, each of which
    has the whole instruction: that in which it starts counts.
    """
    module = published_module(compiled)
    assert module is not None
    bodies: dict[int, list[Any]] = {}
    for instruction in module.instructions.values():
        bodies.setdefault(instruction.computation, []).append(instruction)

    def of(computation: int, *, is_fused: bool = False) -> int:
        total = 0
        body = bodies.get(computation, [])
        counts = not is_fused or any(i.target == _STARTS for i in body)
        for instruction in body:
            opcode, times = instruction.opcode, 1
            if opcode == "while":
                times = loop_trips(module, instruction) or 1
            if opcode.startswith(_COLLECTIVES):
                if counts and not opcode.endswith("-done"):
                    # A start's shape holds its operand, too.
                    arrays = [sum(sizes_of(a)[:2]) for _, a in leaves(instruction.shape)]
                    total += max(arrays, default=0)
            else:
                inside = is_fused or opcode == "fusion"
                total += times * sum(of(c, is_fused=inside) for c in instruction.called)
        return total

    return of(module.entry)


def _described(loop: Any) -> str:
    if loop.live_bytes is not None:
        return f"{loop.length} iterations, {loop.live_bytes / 2**20:.0f} MiB alive"
    return ", ".join(
        f"layers {part.first} to {part.last} keep {part.kept_bytes / 2**20:.0f} "
        "MiB each" + (f" in groups of {part.group}" if part.group > 1 else "")
        for part in loop.parts
    )


def table(name: str) -> str:
    versions = Versions(ROWS[name])
    recipe = versions.recipe
    rows = [versions.under(policy) for policy in recipe.policies]
    for first, early, late, two in recipe.by_hand:
        rows.append(versions.by_hand(first, early, late, two=two))
    rows += versions.planned(recipe.budgets)
    columns = ["version", "GiB", "", "price, s", "TFLOP", "gathered, GiB", "plan"]
    return (
        f"`python examples/scale/table.py --row {name}`, Python "
        f"{platform.python_version()}, jax {jax.__version__}, {recipe.mesh}: "
        f"{recipe.devices} devices, compiled, not run, on two cores of a "
        f"{platform.machine()} server that other work shared. {recipe.model}, FSDP, "
        f"{recipe.batch} x {recipe.sequence} tokens a device; figures are per device.\n\n"
        f"### {name}\n\n{markdown(rows, columns)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = table(arguments.row)
    if arguments.write:
        (RESULTS / f"scale_{arguments.row}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
