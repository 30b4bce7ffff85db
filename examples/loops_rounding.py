"""Loops rounding: where the results of a planned step with loops begin to differ.

    python examples/loops_rounding.py [--step nnx_decoder] [--budget 60%]

The planned program and the step as written are evaluated one equation at a time, where
nothing is fused, and compiled: with XLA's defaults, without what lets XLA:CPU round a
value in one of two ways, and with every quotient by a repeated value as a product with
its reciprocal. Both are compared after one step. Results are relative distances of arrays
by norm, the largest of all, of the loss alone, and of the first moment, which is a tenth
of the gradient where the optimizer is Adam.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from budget_table import markdown
from compare.loops_second.steps import STEPS
from loops_second import POLICIES

import coop_jax
from coop_jax.base._compat import DropVar, Literal
from coop_jax.compile.traced_step import TracedStep
from coop_jax.loops.loop import Loop
from coop_jax.trace.program import Program

EXCESS = {"xla_allow_excess_precision": False}
LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
COMPILED = {
    "compiled": {},
    "compiled, no excess precision": EXCESS,
    "compiled, no fusions of the library YNN": LIBRARY,
    "compiled, neither": EXCESS | LIBRARY,
}
COLUMNS = ("compared", "unequal results", "largest", "loss", "first moment")
Results = list[tuple[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How a program is evaluated.

    Attributes:
        is_one_by_one: whether iterations run one after the other; else loops are loops,
            to be compiled.
        has_reciprocals: whether a quotient by a repeated value is a product.
    """

    is_one_by_one: bool = False
    has_reciprocals: bool = False

    def run(self, program: Program, args: list[Any]) -> list[Any]:
        """The results of a program, whose loops run in the same way."""
        names = [*program.constvars, *program.invars]
        known = dict(zip(names, [*program.consts, *args], strict=True))
        made: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for eqn in program.eqns:
            values = [read(v) for v in eqn.invars]
            if eqn.primitive.name == "scan":
                results = self._loop(Loop.of(eqn), values)
            elif self._is_quotient(eqn, made):
                repeated = made[eqn.invars[1]]
                divisor = 1 / read(repeated.invars[0])
                results = [values[0] * repeated.primitive.bind(divisor, **repeated.params)]
            else:
                found = eqn.primitive.bind(*values, **eqn.params)
                results = found if eqn.primitive.multiple_results else [found]
            for var, value in zip(eqn.outvars, results, strict=True):
                if not isinstance(var, DropVar):
                    known[var], made[var] = value, eqn
        return [read(v) for v in program.outvars]

    def _is_quotient(self, eqn: Any, made: dict[Any, Any]) -> bool:
        if not self.has_reciprocals or eqn.primitive.name != "div":
            return False
        divisor = eqn.invars[1]
        if isinstance(divisor, Literal) or divisor not in made:
            return False
        repeated = made[divisor]
        is_broadcast = repeated.primitive.name == "broadcast_in_dim"
        return is_broadcast and not isinstance(repeated.invars[0], Literal)

    def _loop(self, loop: Loop, values: list[Any]) -> list[Any]:
        first = loop.num_consts + loop.num_carry
        consts, carry = values[: loop.num_consts], values[loop.num_consts : first]

        def iteration(carry: list[Any], entries: list[Any]) -> tuple[list[Any], list[Any]]:
            results = self.run(loop.body, [*consts, *carry, *entries])
            return results[: loop.num_carry], results[loop.num_carry :]

        if not self.is_one_by_one:
            carry, stacks = jax.lax.scan(
                iteration, carry, values[first:], loop.length, loop.is_reversed
            )
            return [*carry, *stacks]
        written: list[Any] = [None] * loop.length
        order = range(loop.length)
        for i in reversed(order) if loop.is_reversed else order:
            carry, written[i] = iteration(carry, [stack[i] for stack in values[first:]])
        return [*carry, *(jnp.stack(column) for column in zip(*written, strict=True))]


class Rounding:
    """The two programs of a step, and their results."""

    def __init__(self, name: str, budget: str):
        self.name = name
        step, args = STEPS[name](None)
        self.leaves = jax.tree.leaves(args)
        self.as_written = TracedStep.trace(step, {"donate_argnums": 0}, args, {}).program
        fitted = coop_jax.remat_train_step(step, budget=budget, donate_argnums=0)
        plan = fitted.plan(*args)
        loops = plan.recipe.loops
        if loops is None or plan.recipe.candidate is not None:
            raise SystemExit(f"{name} under {budget} is not planned by its loops alone.")
        self.planned = loops.program
        shapes = jax.tree_util.tree_leaves_with_path(jax.eval_shape(step, *args))
        self.paths = [jax.tree_util.keystr(path) for path, _ in shapes]

    def results(self, program: Program, how: Evaluation, options: Any = None) -> Results:
        def run(*args: Any) -> list[Any]:
            return how.run(program, list(args))

        function = run if options is None else jax.jit(run, compiler_options=options)
        arrays = map(np.asarray, function(*self.leaves))
        return list(zip(self.paths, arrays, strict=True))

    def policy(self, name: str) -> Results:
        step, args = STEPS[self.name](POLICIES[name])
        leaves = jax.tree.leaves(jax.jit(step)(*args))
        return list(zip(self.paths, map(np.asarray, leaves), strict=True))

    def rows(self) -> list[list[str]]:
        one_by_one = Evaluation(is_one_by_one=True)
        alone = self.results(self.as_written, one_by_one)
        ours = self.results(self.planned, one_by_one)
        rows = [compared("one equation at a time", ours, alone)]
        for label, options in COMPILED.items():
            expected = self.results(self.as_written, Evaluation(), options)
            ours = self.results(self.planned, Evaluation(), options)
            rows.append(compared(label, ours, expected))
            if options:
                continue
            text = ", with one equation at a time"
            rows.append(compared(f"as written{text}", expected, alone))
            rows.append(compared(f"planned{text}", ours, alone))
            rows += [compared(p, self.policy(p), expected) for p in POLICIES]
        reciprocals = Evaluation(has_reciprocals=True)
        ours = self.results(self.planned, reciprocals, EXCESS | LIBRARY)
        rows.append(compared("compiled, neither, and reciprocals", ours, expected))
        return rows


def compared(label: str, ours: Results, expected: Results) -> list[str]:
    unequal, largest, loss, moment = 0, 0.0, 0.0, 0.0
    for (path, a), (_, b) in zip(ours, expected, strict=True):
        unequal += a.tobytes() != b.tobytes()
        wide = b.astype(np.float64)
        norm = float(np.linalg.norm(wide)) or 1.0
        distance = float(np.linalg.norm(a.astype(np.float64) - wide)) / norm
        largest = max(largest, distance)
        if path == "[1]":
            loss = distance
        if ".mu" in path:
            moment = max(moment, distance)
    figures = (f"{x:.1e}" if x else "equal" for x in (largest, loss, moment))
    return [label, f"{unequal} of {len(ours)}", *figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", default="nnx_decoder", choices=list(STEPS))
    parser.add_argument("--budget", default="60%")
    options = parser.parse_args()
    print(f"jax {jax.__version__}, {options.step}, budget {options.budget}\n")
    print(markdown(Rounding(options.step, options.budget).rows(), COLUMNS))


if __name__ == "__main__":
    main()
