"""Step graph: a flat program and its stored values to the graph that the planner takes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.base import _compat
from coop_jax.base._compat import Literal
from coop_jax.graph.fusion_regions import FusionRegion, regions_in_order
from coop_jax.graph.memory_aware_order import early_order
from coop_jax.graph.scatter_add import accumulations
from coop_jax.graph.stored_values import StoredValues
from coop_jax.graph.take_overs import (
    carried_pairs,
    donated_overwrites,
    in_place_pairs,
    overwritten_by_operation,
    scattered_pairs,
)
from coop_jax.targets import Target
from coop_jax.trace.costs import (
    flops,
    is_elementwise,
    is_view,
    seconds,
    whole_bytes,
)
from coop_jax.trace.program import Program
from coop_jax.trace.purity import may_move, may_run_again
from coop_jax.trace.replacements import original


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One operation: `equations` (indices, ascending) compute `outputs` from `inputs`.

    Inputs and outputs are tensor indices. The last equation names it.

    Attributes:
        again: tensors that other operations make and this one computes again, for what it
            compares with them.
    """

    equations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    again: frozenset[Any] = frozenset()

    @property
    def anchor(self) -> int:
        return self.equations[-1]


@dataclasses.dataclass(frozen=True, eq=False)
class StepGraph:
    """The graph of a step with its way back to the program.

    Attributes:
        program: the program that it was made from.
        operations: in execution order.
        tensors: the variable of every tensor.
        num_inputs: tensors `0 .. num_inputs - 1` are constants and step inputs.
        donated: for every input tensor whether its buffer may be reused.
        in_pool_bytes: bytes every tensor takes in the pool (0: outside of it).
        target: the target that it was built for.
        made_at: position in XLA's schedule at which the unmodified step makes an
            operation's results, -1 if that is not known; the same for all results of one
            fusion.
        core: the same graph for the C++ planner.
        flops: floating point operations of every operation.
        overwritten_by: the donated inputs whose memory an operation's results take over,
            by operation.
        index_of: tensor index by variable.
        partial_results: operations whose results XLA stores only if they pass a fence, as
            it would fuse them into their readers (`wide_fusions`).
        expansions: values that an operation computes without storing them, and that XLA
            would store for two operations between the same fences (`graph.expansions`), by
            operation.
        stored: the stored values that it was made from.
        is_early: whether every operation is as soon as it frees memory; else XLA's order.
    """

    program: Program
    operations: tuple[Operation, ...]
    tensors: tuple[Any, ...]
    num_inputs: int
    donated: tuple[bool, ...]
    in_pool_bytes: tuple[int, ...]
    target: Target
    made_at: tuple[int, ...]
    core: Any
    flops: tuple[int, ...]
    overwritten_by: dict[int, tuple[int, ...]]
    index_of: dict[Any, int]
    partial_results: frozenset[int]
    expansions: Mapping[int, frozenset[Any]]
    stored: StoredValues
    is_early: bool

    @property
    def stores_more(self) -> bool:
        """Whether there are partial results or expansions: what it takes to store the
        first, and the fences of the second, are not priced."""
        return bool(self.partial_results or self.expansions)

    def scratch_of(self, operation: int) -> int:
        """Bytes of scratch of an operation, by the stored values."""
        workspace = self.stored.workspace_bytes
        return max(workspace.get(i, 0) for i in self.operations[operation].equations)

    def with_scratch(self, scratch_bytes: Mapping[int, int]) -> StepGraph:
        """The same for the planner with at least so many bytes of scratch, by the equation
        that names an operation; the stored values stay."""
        arrays = self.core.arrays()
        arrays["op_workspace_bytes"] = np.array(
            [
                max(known, scratch_bytes.get(op.anchor, 0))
                for op, known in zip(
                    self.operations, arrays["op_workspace_bytes"].tolist(), strict=True
                )
            ],
            np.int64,
        )
        return dataclasses.replace(self, core=_ext.Graph(**arrays))

    def with_stored_scratch(self, scratch_bytes: Mapping[int, int]) -> StepGraph:
        """The graph that `build_graph` makes of the stored values with at least so many
        bytes of scratch, by equation: nothing else depends on it."""
        stored = self.stored.with_scratch(scratch_bytes)
        changed = dataclasses.replace(self, stored=stored)
        arrays = self.core.arrays()
        workspace = [changed.scratch_of(k) for k in range(len(self.operations))]
        arrays["op_workspace_bytes"] = np.array(workspace, np.int64)
        return dataclasses.replace(changed, core=_ext.Graph(**arrays))

    def equation(self, operation: int) -> Any:
        """The equation that names an operation."""
        return self.program.eqns[self.operations[operation].anchor]

    def describe(self, operation: int) -> str:
        """`dot_general at model.py:12 (loss)` for messages and reports."""
        eqn = self.equation(operation)
        return f"`{original(eqn).primitive.name}` at {_compat.source_line(eqn)}"

    def __repr__(self) -> str:
        return (
            f"StepGraph({len(self.operations)} operations, {len(self.tensors)} tensors, "
            f"{sum(self.in_pool_bytes) / 2**20:.1f} MiB stored)"
        )


def build_graph(
    program: Program,
    materialization: StoredValues,
    target: Target,
    *,
    early: bool = False,
    inputs_in_pool: bool = False,
) -> StepGraph:
    """The planner's graph of a program, with times for a target.

    Arguments:
        program: flat program.
        materialization: its stored values.
        target: the device whose rates give every operation its seconds.
        early: not in XLA's order, but every operation as soon as it frees memory.
        inputs_in_pool: the paper's model: parameters, optimizer state and batch lie
            pinned in the pool, and results stay there. Default: XLA's, where arguments
            and results have buffers of their own.
    """
    eqns = program.eqns
    inputs = list(dict.fromkeys([*program.constvars, *program.invars]))
    num_inputs = len(inputs)
    outputs = {v for v in program.outvars if not isinstance(v, Literal)}
    regions = list(regions_in_order(program, materialization))
    tensors, operations = _tensors_and_operations(inputs, regions)

    def is_external(tensors: Sequence[Any]) -> list[bool]:
        return [
            not inputs_in_pool and (i < num_inputs or v in outputs)
            for i, v in enumerate(tensors)
        ]

    def bytes_in_pool(tensors: Sequence[Any]) -> tuple[int, ...]:
        return tuple(
            0 if outside else materialization.bytes_of(v)
            for v, outside in zip(tensors, is_external(tensors), strict=True)
        )

    if early:
        order = early_order(
            [op.inputs for op in operations],
            [op.outputs for op in operations],
            bytes_in_pool(tensors),
            _must_precede(program, operations, tensors, is_external(tensors)),
            # Below the unit of allocation nothing is worth freeing. A bias correction, a
            # scalar, would come last, and all updates of weights after it, apart from
            # those of their moments.
            target.alignment_bytes,
            [_made_at(op, tensors, materialization) for op in operations],
        )
        tensors, operations = _tensors_and_operations(inputs, [regions[k] for k in order])
    donated_vars = {v for v, d in zip(program.invars, program.donated, strict=True) if d}
    external = is_external(tensors)
    in_pool = bytes_in_pool(tensors)
    overwrites = donated_overwrites(program, operations, tensors, external)
    core = _core_graph(
        program, materialization, target, operations, tensors, in_pool, external, overwrites
    )
    return StepGraph(
        program=program,
        operations=tuple(operations),
        tensors=tuple(tensors),
        num_inputs=num_inputs,
        donated=tuple(v in donated_vars for v in inputs),
        in_pool_bytes=in_pool,
        target=target,
        made_at=tuple(_made_at(op, tensors, materialization) for op in operations),
        core=core,
        flops=tuple(sum(flops(eqns[i]) for i in op.equations) for op in operations),
        overwritten_by=overwritten_by_operation(overwrites),
        index_of={v: i for i, v in enumerate(tensors)},
        partial_results=frozenset(
            k
            for k, op in enumerate(operations)
            if op.anchor in materialization.partial_results
        ),
        expansions=_expansions(program, operations, tensors, materialization),
        stored=materialization,
        is_early=early,
    )


def _tensors_and_operations(
    inputs: Sequence[Any], regions: Iterable[FusionRegion]
) -> tuple[list[Any], list[Operation]]:
    """The variable of every tensor, and the operations on tensor indices.

    Tensors are numbered in the order in which they are made, the inputs first.
    """
    tensors = list(inputs)
    index_of = {v: i for i, v in enumerate(tensors)}
    operations = []
    for region in regions:
        for v in region.makes:
            index_of[v] = len(tensors)
            tensors.append(v)
        operations.append(
            Operation(
                equations=region.equations,
                inputs=tuple(sorted(index_of[v] for v in region.reads)),
                outputs=tuple(index_of[v] for v in region.makes),
                again=region.again,
            )
        )
    return tensors, operations


def _expansions(
    program: Program,
    operations: Sequence[Operation],
    tensors: Sequence[Any],
    materialization: StoredValues,
) -> dict[int, frozenset[Any]]:
    """The expansions that operations compute inside, by operation."""
    unstored = materialization.expansions.difference(tensors)
    made_by = {v: i for i, eqn in enumerate(program.eqns) for v in eqn.outvars}
    index = {made_by[v]: v for v in unstored}
    inside = {
        k: frozenset(index[i] for i in op.equations if i in index)
        for k, op in enumerate(operations)
    }
    return {k: values for k, values in inside.items() if values}


def _made_at(
    operation: Operation, tensors: Sequence[Any], materialization: StoredValues
) -> int:
    """The last position in XLA's schedule of an operation's results."""
    made = (materialization.position.get(tensors[t], -1) for t in operation.outputs)
    return max(made, default=-1)


def _must_precede(program, operations, tensors, external) -> Iterator[tuple[int, int]]:
    """Pairs of operations that keep their order though no value connects them.

    Operations that may not move; and those that read an input before those that
    overwrite it.
    """
    in_place = [
        k for k, op in enumerate(operations) if not may_move(program.eqns[op.anchor])
    ]
    yield from itertools.pairwise(in_place)
    overwritten_by = {
        int(old): int(k)
        for k, old, _ in donated_overwrites(program, operations, tensors, external)
    }
    for k, op in enumerate(operations):
        for t in op.inputs:
            if overwritten_by.get(t, k) != k:
                yield k, overwritten_by[t]


def _core_graph(
    program: Program,
    materialization: StoredValues,
    target: Target,
    operations: Sequence[Operation],
    tensors: Sequence[Any],
    in_pool: Sequence[int],
    external: Sequence[bool],
    overwrites: np.ndarray,
) -> Any:
    """The graph as arrays, checked by the core."""
    eqns = program.eqns
    outputs = {v for v in program.outvars if not isinstance(v, Literal)}
    inputs = {*program.constvars, *program.invars}
    replaced = set(overwrites[:, 2].tolist())
    # In the pool, inputs and the results that take over their memory stay in place, and so
    # do other results: one that was made early and evicted would, recomputed at the end,
    # cost the complete step once more.
    pinned = [
        not is_external and (v in inputs or i in replaced or v in outputs)
        for i, (v, is_external) in enumerate(zip(tensors, external, strict=True))
    ]
    is_output = [
        not is_external and not is_pinned and v in outputs
        for v, is_external, is_pinned in zip(tensors, external, pinned, strict=True)
    ]
    sums = {total: (v, other) for v, (total, other) in accumulations(program).items()}
    op_seconds, workspace, recomputable, in_place = [], [], [], []
    for k, op in enumerate(operations):
        body = [eqns[i] for i in op.equations]
        moved = [
            sum(whole_bytes(tensors[t].aval) for t in ts) for ts in (op.inputs, op.outputs)
        ]
        op_seconds.append(seconds(body, moved[0], moved[1], target))
        workspace.append(
            max(materialization.workspace_bytes.get(i, 0) for i in op.equations)
        )
        recomputable.append(all(map(may_run_again, body)))
        rule = materialization.in_place
        if rule == "fusions" or (
            rule == "elementwise"
            and all(is_elementwise(eqn) or is_view(eqn) for eqn in body)
        ):
            in_place += in_place_pairs(k, op, body, tensors, in_pool)
        in_place += scattered_pairs(k, op, body, sums, tensors, in_pool)
        in_place += carried_pairs(k, op, body, tensors, in_pool)
    return _ext.Graph(
        op_seconds=np.array(op_seconds, np.float64),
        op_workspace_bytes=np.array(workspace, np.int64),
        op_recomputable=np.array(recomputable, bool),
        **_ragged("op_inputs", [op.inputs for op in operations]),
        **_ragged("op_outputs", [op.outputs for op in operations]),
        tensor_bytes=np.array(in_pool, np.int64),
        tensor_external=np.array(external, bool),
        tensor_pinned=np.array(pinned, bool),
        tensor_output=np.array(is_output, bool),
        in_place=np.array([*dict.fromkeys(in_place)], np.int64).reshape(-1, 3),
        overwrites=overwrites,
    )


def _ragged(name: str, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Rows of different lengths as the core takes them: flat, with pointers."""
    lengths = [0, *(len(row) for row in rows)]
    flat = [item for row in rows for item in row]
    return {
        f"{name}_ptr": np.cumsum(lengths).astype(np.int64),
        name: np.array(flat, np.int64),
    }
