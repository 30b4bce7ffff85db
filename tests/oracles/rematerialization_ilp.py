"""The least recomputation under a budget of live bytes, by integer programming.

Checkmate's formulation (Jain et al., MLSys 2020): one stage per operation, in program
order. A stage may run earlier operations again, in ascending order, and ends with its own
operation; a last one brings the outputs back. `R[stage, op]`: runs in the stage.
`S[stage, tensor]`: resident when it begins. `passes` stages per operation lift the
restriction to one ascending pass: two may run M1 -> A, M2 -> B one after the other though
the program has M1, M2, A, B. Enough of them give every schedule.

Free of big-M, and of the products that Checkmate's FREE variables linearise: a tensor
that a later run j of the stage reads, or that the stage leaves behind, is there from its
maker on. So between two of its possible readers a tensor's presence is one variable,

    Q[stage, i] >= R[stage, reader i],   Q[stage, i] >= Q[stage, i + 1],

and Q after the last reader is S[stage + 1]; before its maker's slot it is S[stage].

Memory: tensors rounded up to the alignment, wherever they lie (no fragmentation); an
operation's workspace; all outputs of a run, wanted or not. The output of an in-place pair
may take over the block of an input that the run leaves dead. Outside: external tensors
and those of no bytes, which stay for ever. An overwritten tensor is never read again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from oracles.live_bytes import Arrays, live_bytes
from scipy import sparse
from scipy.optimize import LinearConstraint, milp

# A constant, or the variable of that index.
Value = float | int


@dataclasses.dataclass(frozen=True)
class Optimum:
    """Bounds of the least recomputation.

    Attributes:
        seconds: of the best schedule found, infinity if none was.
        bound: no schedule of this many passes recomputes for less.
        is_proven: `seconds` is the optimum (to the relative gap asked for).
        runs: (operation, stage) in order; of stage k, all but operation k's first run
            are recomputations. Empty if none was found.
        live_bytes: the most bytes in use at once, by an independent replay.
    """

    seconds: float
    bound: float
    is_proven: bool
    runs: tuple[tuple[int, int], ...]
    live_bytes: int


def least_recomputation(
    arrays: Mapping[str, Any],
    budget: int,
    *,
    alignment: int = 64,
    passes: int = 1,
    time_limit: float = 60.0,
    relative_gap: float = 1e-4,
    at_most: float | None = None,
) -> Optimum | None:
    """The optimum of a graph's arrays (`Graph.arrays()`), None if there is no schedule.

    Arguments:
        budget: live bytes.
        passes: ascending passes of recomputation before each operation.
        at_most: seconds of recomputation of a schedule already known; only ones that take
            no longer are looked for, and None then means that there are none.
    """
    problem = _Problem(Arrays.of(arrays, alignment), budget, passes)
    return problem.solve(time_limit, relative_gap, at_most)


class _Var(int):
    """The index of a variable, to tell it from a constant."""


class _Problem:
    def __init__(self, arrays: Arrays, budget: int, passes: int) -> None:
        self.a, self.budget = arrays, budget
        end = arrays.num_ops
        # (position, whether its operation's first run ends the stage)
        self.stages = [
            (position, is_last and position < end)
            for position in range(end + 1)
            for is_last in [False] * (passes - 1) + [True]
        ]
        self.useful = _last_useful_stage(arrays)
        self.integral: list[int] = []
        self.objective: list[float] = []
        self.rows: list[dict[int, float]] = []
        self.upper: list[float] = []
        self.is_infeasible = False
        self.run = [self._run_variables(g) for g in range(len(self.stages))]
        self.held = [self._held_variables(g) for g in range(len(self.stages) + 1)]
        for g in range(len(self.stages)):
            self._add_stage(g)
        self._add_ends()

    # Variables ------------------------------------------------------------

    def _new(self, *, is_integral: bool, cost: float = 0.0) -> _Var:
        self.integral.append(int(is_integral))
        self.objective.append(cost)
        return _Var(len(self.objective) - 1)

    def _at_most(self, bound: float, *terms: tuple[float, Value]) -> None:
        """sum of coefficient * value <= bound"""
        row: dict[int, float] = {}
        for coefficient, value in terms:
            if isinstance(value, _Var):
                row[int(value)] = row.get(int(value), 0.0) + coefficient
            else:
                bound -= coefficient * value
        row = {i: c for i, c in row.items() if c}
        # Worth keeping only if some assignment breaks it.
        if sum(c for c in row.values() if c > 0) <= bound + 1e-12:
            return
        if sum(c for c in row.values() if c < 0) > bound + 1e-9:
            self.is_infeasible = True
        self.rows.append(row)
        self.upper.append(bound)

    def _max(self, *values: Value) -> Value:
        """A value that is at least each of these, and no larger for it to matter."""
        if any(not isinstance(v, _Var) and v >= 1 for v in values):
            return 1.0
        variables = list(dict.fromkeys(v for v in values if isinstance(v, _Var)))
        if len(variables) < 2:
            return variables[0] if variables else 0.0
        larger = self._new(is_integral=False)
        for v in variables:
            self._at_most(0, (1, v), (-1, larger))
        return larger

    def _run_variables(self, g: int) -> dict[int, Value]:
        position, is_forced = self.stages[g]
        found: dict[int, Value] = {}
        for op in range(position):
            makes = [t for t in self.a.outputs[op] if self.a.in_pool(t)]
            if (
                self.a.recomputable[op]
                and any(self.useful[t] >= position for t in makes)
                and all(self.a.overwritten_at[t] >= position for t in self.a.inputs[op])
            ):
                found[op] = self._new(is_integral=True, cost=self.a.seconds[op])
        if is_forced:
            found[position] = 1.0
        return found

    def _held_variables(self, g: int) -> dict[int, Value]:
        """By tensor: is it resident when stage g begins? Absent: no."""
        if g == len(self.stages):
            return {t: 1.0 for t in self.a.output if self.a.in_pool(t)}
        position, _ = self.stages[g]
        found: dict[int, Value] = {}
        for t in range(self.a.num_tensors):
            made_at = self.a.producer[t]
            if not self.a.in_pool(t) or made_at >= position or self.useful[t] < position:
                continue
            no_way_back = made_at < 0 or not self.a.recomputable[made_at]
            if no_way_back and self.a.last_use[t] >= position:
                found[t] = 1.0
            else:
                found[t] = self._new(is_integral=True)
        return found

    # Constraints ----------------------------------------------------------

    def _add_stage(self, g: int) -> None:
        run, held, left = self.run[g], self.held[g], self.held[g + 1]
        position, _ = self.stages[g]
        makers: dict[int, Value] = {}
        presence: dict[int, list[tuple[int, Value]]] = {}
        for t in range(self.a.num_tensors):
            if not self.a.in_pool(t) or self.a.producer[t] > position:
                continue
            op = self.a.producer[t]
            maker, before, after = run.get(op, 0.0), held.get(t, 0.0), left.get(t, 0.0)
            makers[t] = maker
            self._at_most(0, (1, after), (-1, before), (-1, maker))
            readers = [j for j in self.a.consumers[t] if j in run]
            for j in readers:
                self._at_most(0, (1, run[j]), (-1, before), (-1, maker))
            segments = [(len(self.a.seconds), after)]
            for j in reversed(readers):
                segments.append((j, self._max(segments[-1][1], run[j])))
            presence[t] = segments[::-1]
            if isinstance(maker, _Var) and self.a.has_one_pool_output(op):
                # A run for nothing, or of what is there, only costs.
                self._at_most(0, (1, maker), (-1, presence[t][0][1]))
                self._at_most(1, (1, maker), (1, before))
        for op, runs in run.items():
            self._add_memory(g, op, runs, makers, presence)

    def _add_memory(self, g, op, runs, makers, presence) -> None:
        position, _ = self.stages[g]
        is_first = op == position
        terms: list[tuple[float, Value]] = [(self.a.workspace[op], runs)]

        def present_from(t: int, slot: int) -> Value:
            return next(value for last, value in presence[t] if last >= slot)

        for t in presence:
            if self.a.producer[t] > op:
                terms.append((self.a.bytes[t], self.held[g].get(t, 0.0)))
            elif self.a.producer[t] < op:
                terms.append((self.a.bytes[t], present_from(t, op)))
            else:
                value = 1.0 if is_first else self._max(makers[t], present_from(t, op))
                terms.append((self.a.bytes[t], value))
        taken: dict[tuple[int, str], list[tuple[float, Value]]] = {}
        for i, o in self.a.in_place[op]:
            if i not in presence or not (o in presence or is_first):
                continue
            dead_after = present_from(i, op + 1)
            if not isinstance(dead_after, _Var) and dead_after >= 1:
                continue
            if self.a.bytes[i] == 0 or self.a.is_external[o]:
                continue
            takes = self._new(is_integral=False)
            self._at_most(1, (1, takes), (1, dead_after))
            self._at_most(0, (1, takes), (-1, runs))
            if not is_first:
                self._at_most(1, (1, takes), (1, self.held[g].get(o, 0.0)))
            taken.setdefault((i, "from"), []).append((1, takes))
            taken.setdefault((o, "to"), []).append((1, takes))
            terms.append((-self.a.bytes[i], takes))
        for pairs in taken.values():
            self._at_most(1, *pairs)
        fixed = self.a.pinned_bytes(position, is_first)
        self._at_most(
            1, *((c / self.budget, v) for c, v in terms), (fixed / self.budget, 1)
        )

    def _add_ends(self) -> None:
        inputs = [t for t in range(self.a.num_tensors) if self.a.producer[t] < 0]
        for tensors, fixed in (
            (inputs, self.a.pinned_bytes(-1, False)),
            (self.a.output, self.a.pinned_bytes(self.a.num_ops, False)),
        ):
            together = sum(self.a.bytes[t] for t in tensors if self.a.in_pool(t))
            self.is_infeasible |= together + fixed > self.budget
        # The tensors that are there at the beginning.
        for t in inputs:
            if isinstance(self.held[0].get(t, 0.0), _Var):
                self._at_most(-1, (-1, self.held[0][t]))

    # Solution -------------------------------------------------------------

    def solve(self, time_limit, relative_gap, at_most) -> Optimum | None:
        if self.is_infeasible:
            return None
        cost = np.array(self.objective)
        if not cost.size:
            return self._found(np.zeros(0), 0.0, True)
        scale = max(cost.max(), 1e-30)
        rows, upper = list(self.rows), list(self.upper)
        if at_most is not None:
            rows.append({i: c / scale for i, c in enumerate(cost) if c})
            upper.append(at_most / scale * (1 + 1e-9) + 1e-9)
        matrix = sparse.csr_array(
            (
                [c for row in rows for c in row.values()],
                (
                    [r for r, row in enumerate(rows) for _ in row],
                    [i for row in rows for i in row],
                ),
            ),
            shape=(len(rows), len(cost)),
        )
        result = milp(
            cost / scale,
            integrality=np.array(self.integral),
            bounds=(0, 1),
            constraints=LinearConstraint(matrix, -np.inf, np.array(upper)),
            options={"time_limit": time_limit, "mip_rel_gap": relative_gap},
        )
        if result.status == 2:
            return None
        bound = max(0.0, float(result.mip_dual_bound or 0.0) * scale)
        if result.x is None:
            return Optimum(float("inf"), bound, False, (), 0)
        return self._found(result.x, bound, result.status == 0)

    def _found(self, x: np.ndarray, bound: float, is_proven: bool) -> Optimum:
        runs = []
        for (position, _), run in zip(self.stages, self.run, strict=True):
            for op in sorted(run):
                value = run[op]
                if (x[int(value)] if isinstance(value, _Var) else value) > 0.5:
                    runs.append((op, position))
        used = live_bytes(self.a, [op for op, _ in runs])
        if used > self.budget:
            raise AssertionError(
                f"the oracle's schedule uses {used} of {self.budget} bytes"
            )
        seconds = sum(self.a.seconds[op] for op, position in runs if op != position)
        return Optimum(seconds, min(bound, seconds), is_proven, tuple(runs), used)


def _last_useful_stage(arrays: Arrays) -> Sequence[int]:
    """By tensor: the last stage in which anything may read it; -1 if none."""
    useful = [-1] * arrays.num_tensors
    for t in arrays.output:
        useful[t] = arrays.num_ops
    for op in reversed(range(arrays.num_ops)):
        last = op
        if arrays.recomputable[op]:
            last = max([op, *(useful[t] for t in arrays.outputs[op] if arrays.in_pool(t))])
        for t in arrays.inputs[op]:
            useful[t] = max(useful[t], last)
    return useful
