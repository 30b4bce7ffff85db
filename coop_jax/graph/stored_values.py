"""Stored values: the values of the program that XLA puts into buffers.

Elementwise chains never reach memory, and the values that do differ between CPU, GPU and
TPU. So they are read from a compilation: the unmodified program is compiled once with every
equation under a name scope that carries its number, and XLA's buffer assignment then has
the stored values, their bytes and, by the scope, the equations that they belong to. Rules
alone were off by up to a factor of two (`docs/xla-notes.md`); they remain for tracing under
an outer `jit`, where nothing can be compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from coop_jax.base import _compat
from coop_jax.graph.resharded_copies import ReshardedCopy
from coop_jax.trace.costs import aval_bytes, is_fusible
from coop_jax.trace.program import Program, writes
from coop_jax.trace.shard_types import num_shards_of
from coop_jax.xla.shapes import Order

SCOPE = "eqn"

InPlace = Literal["elementwise", "scatters", "fusions"]
Narrowed = Mapping[Any, frozenset[int]]
"""bfloat16-narrowed values, each with the equations that read it as float32."""


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """The values of a program that XLA stores, and bytes beside them.

    Attributes:
        stored_bytes: bytes of every stored value, by variable.
        workspace_bytes: scratch that the operation of an equation needs while it runs
            (loop bodies, buffers that are no value of the program), by equation index.
        position: the place in XLA's schedule at which it makes a value, by variable.
        unmapped_bytes: total of the buffers that could not be given to any equation.
        source: `"compiled"` or `"rules"`.
        num_partitions: devices that the program is partitioned over.
        in_place: the operations that may write over an operand. XLA:CPU: those that are
            elementwise and nothing else (with more, plans of a conv net missed by 7 MiB
            of 46 rather than by 2). XLA:GPU: none, except scatters.
            XLA:TPU: fusions, over what they read element by element.
        unlisted_bytes: bytes of XLA's temporaries beyond the buffers of equations: those
            that it does not list, and buffers that last for much of the step but belong to
            no equation (XLA:GPU stores the zeros of a `relu`).
        more_unlisted_of_plans: bytes that plans are expected to need beyond that, or less
            if negative (`backends.tpu.async_copies`).
        early_bytes: bytes that XLA makes for an equation long before it runs, where no
            fence is in between, by equation index.
        kept_constant_bytes: bytes of arrays of constants that XLA keeps for much of the
            step, with fences or without (`unattributed_buffers.buffers_of_kept_constants`).
        layouts: those that XLA chose, where fences keep them, by variable
            (`backends.tpu.layouts`).
        narrowed: values that XLA:TPU stores as bfloat16 (`backends.tpu.bf16_storage`).
        partial_results: values among them that XLA would not store, and that fences make
            it store (`wide_fusions`), by the index of the equation.
        resharded: copies of values on a mesh that XLA makes as soon as it can and keeps
            until no operation of the segment reads them, where it does so
            (`search.copies_alive`).
        expansions: values that XLA stores as written and that fences between their readers
            keep it from storing (`graph.expansions`).
    """

    stored_bytes: dict[Any, int]
    workspace_bytes: dict[int, int]
    position: dict[Any, int]
    unmapped_bytes: int
    source: str
    num_partitions: int = 1
    in_place: InPlace = "elementwise"
    unlisted_bytes: int = 0
    more_unlisted_of_plans: int = 0
    early_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    kept_constant_bytes: int = 0
    layouts: dict[Any, Order] = dataclasses.field(default_factory=dict)
    narrowed: Narrowed = dataclasses.field(default_factory=dict)
    partial_results: Mapping[int, Any] = dataclasses.field(default_factory=dict)
    resharded: tuple[ReshardedCopy, ...] = ()
    expansions: frozenset[Any] = frozenset()

    def bytes_of(self, var: Any) -> int:
        """Bytes of a value on one device: XLA's, or those of its type.

        A value that XLA did not store is taken to be partitioned over all devices, as
        activations are.
        """
        stored = self.stored_bytes.get(var)
        if stored is not None:
            return stored
        parts = max(1, self.num_partitions // num_shards_of(var.aval))
        return aval_bytes(var.aval) // parts

    @property
    def fuses_most(self) -> bool:
        """Whether most equations are evaluated in every fusion that reads them.

        XLA:TPU does so even for the random bits of a dropout, and for the scatter of a
        cross-entropy's gradient, which it turns into a comparison.
        """
        return self.source == "compiled" and self.in_place == "fusions"

    def with_scratch(self, scratch_bytes: Mapping[int, int]) -> StoredValues:
        """The same with at least so many bytes of scratch, by equation index."""
        workspace = dict(self.workspace_bytes)
        for index, size in scratch_bytes.items():
            workspace[index] = max(workspace.get(index, 0), size)
        return dataclasses.replace(self, workspace_bytes=workspace)

    def with_twice(self, values: Iterable[Any]) -> StoredValues:
        """The same with twice the bytes for some values."""
        twice = {v: 2 * self.bytes_of(v) for v in values}
        return dataclasses.replace(self, stored_bytes=self.stored_bytes | twice)

    def without_early(self) -> StoredValues:
        """The same, but for the scratch that is made early."""
        workspace = {
            index: max(0, size - self.early_bytes.get(index, 0))
            for index, size in self.workspace_bytes.items()
        }
        return dataclasses.replace(self, workspace_bytes=workspace, early_bytes={})


def tag(program: Program) -> Program:
    """The program with the index of every equation as a name scope around it."""
    eqns = tuple(
        _compat.with_name_scope(eqn, f"{SCOPE}{i}") for i, eqn in enumerate(program.eqns)
    )
    return dataclasses.replace(program, eqns=eqns)


def from_rules(program: Program) -> StoredValues:
    """An estimate without a compiler: operands and results of unfusible operations."""
    stored: dict[Any, int] = {}
    produced = {v for eqn in program.eqns for v in writes(eqn)}
    for eqn in program.eqns:
        if is_fusible(eqn):
            continue
        for var in [*eqn.invars, *writes(eqn)]:
            if not isinstance(var, _compat.Literal) and var in produced:
                stored[var] = aval_bytes(var.aval)
    return StoredValues(stored, {}, {}, 0, "rules")
