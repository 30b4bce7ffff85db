"""Table: the rows of `coop_jax.compare`, as a table and as a picture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Literal

from coop_jax.base.budget import format_bytes
from coop_jax.comparison import plot

Kind = Literal["unmodified", "checkpoint", "coop_jax"]

_COLUMNS = (
    "step",
    "kind",
    "budget",
    "predicted",
    "XLA's bytes",
    "of unmodified",
    "FLOPs",
    "modelled time",
    "product FLOPs",
    "executable time",
    "measured time",
    "compilations",
    "note",
)
_LEFT_ALIGNED = ("step", "kind", "note")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One version of the step. Figures that are not known are None.

    Attributes:
        name: the policy's name, or the origin of coop_jax's budget.
        kind: `"unmodified"`, `"checkpoint"` or `"coop_jax"`.
        budget_bytes: the budget given to coop_jax.
        predicted_bytes: the planner's expectation before the compilation, for the
            unmodified step and for coop_jax.
        measured_bytes: XLA's arguments + results - aliased + temporaries on one device;
            None where the budget is infeasible.
        flops: floating point operations that are executed, recomputation included.
        modelled_seconds: seconds of one execution, by the planner's model of the target.
        measured_ratio: median time of the step, relative to the unmodified one that
            ran in turns with it.
        num_compilations: the number of compilations by XLA to get the step, those of the
            unmodified step that coop_jax needs included.
        note: further remarks.
        product_flops: floating point operations of the products and convolutions in the
            compiled step, on one device.
        executable_seconds: seconds of the instructions that the compiled step consists
            of, at the target's rates: what a fence stores or tears apart is counted. On a
            CPU also of the pages that its temporaries take in every run.
    """

    name: str
    kind: Kind
    budget_bytes: int | None = None
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    flops: int | None = None
    modelled_seconds: float | None = None
    measured_ratio: float | None = None
    num_compilations: int = 1
    note: str = ""
    product_flops: int | None = None
    executable_seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """What versions are compared by: the seconds of the executable, where it publishes
        its instructions; else those of the planner's model."""
        known = self.executable_seconds
        return self.modelled_seconds if known is None else known

    def beats(self, other: Row) -> bool:
        """Whether it needs at most the other's bytes, and at most its `seconds`.

        Arguments:
            other: a row of the same comparison.

        Returns:
            False where one of the figures is not known.
        """
        return _at_most(self.measured_bytes, other.measured_bytes) and _at_most(
            self.seconds, other.seconds
        )


def _at_most(ours: float | None, others: float | None) -> bool:
    return ours is not None and others is not None and ours <= others


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Bytes and costs of versions of one step; prints as a table.

    Attributes:
        target: the name of the device that the step was compiled for.
        rows: the unmodified step, `jax.checkpoint` by policy, coop_jax by budget.
        num_devices: the number of devices that the step is divided over; bytes and the
            seconds of executables are of one of them.
    """

    target: str
    rows: tuple[Row, ...]
    num_devices: int = 1

    @property
    def unmodified(self) -> Row:
        """The row of the step as written."""
        return self.row("unmodified")

    def row(self, name: str) -> Row:
        """The row of that name.

        Arguments:
            name: `"unmodified"`, a policy's name, or `"coop_jax at ..."`.

        Raises:
            ValueError: no row has it.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise ValueError(
            f"`Comparison.row(name)` must be one of "
            f"{', '.join(repr(row.name) for row in self.rows)}. Got {name!r}."
        )

    def matched(self) -> list[tuple[Row, Row]]:
        """Pairs of a policy's row and the row of coop_jax with the fewest `seconds` that
        needs at most its bytes; without the policies for which there is none."""
        ours = sorted(
            (row for row in self.rows if row.kind == "coop_jax" and row.seconds),
            key=lambda row: row.seconds or 0.0,
        )
        pairs = []
        for row in self.rows:
            if row.kind == "checkpoint" and row.modelled_seconds is not None:
                fits = (o for o in ours if _at_most(o.measured_bytes, row.measured_bytes))
                fastest = next(fits, None)
                if fastest is not None:
                    pairs.append((row, fastest))
        return pairs

    def prediction_errors(self) -> list[float]:
        """Predicted over measured bytes, less 1, of every row that has both."""
        return [
            row.predicted_bytes / row.measured_bytes - 1
            for row in self.rows
            if row.predicted_bytes is not None and row.measured_bytes
        ]

    def markdown(self) -> str:
        """The rows as a Markdown table."""
        rule = ["---" if name in _LEFT_ALIGNED else "---:" for name in _COLUMNS]
        cells = [_COLUMNS, rule, *map(self._cells, self.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def plot(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Save bytes against `seconds` as a picture; needs matplotlib.

        Arguments:
            path: the file; the format follows its ending.
            title: the picture's title; None for one with the target's name.
        """
        base_seconds = self.unmodified.seconds or 1.0
        shown = title or f"Recomputation against memory, {self.target}"
        plot.plot(self.rows, base_seconds, path, shown)

    def __str__(self) -> str:
        cells = [_COLUMNS, *map(self._cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if name in _LEFT_ALIGNED else cell.rjust(width)
                for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
            ).rstrip()
            for row in cells
        ]
        several = f", per device, {self.num_devices} devices" * (self.num_devices > 1)
        return "\n".join([f"coop_jax comparison on {self.target}{several}", *lines])

    def _cells(self, row: Row) -> tuple[str, ...]:
        """The cells of a row of the table."""
        base = self.unmodified

        def ratio(of: Any, to: Any, form: str) -> str:
            return "" if of is None or not to else format(of / to, form)

        def size(count: int | None) -> str:
            return "" if count is None else format_bytes(count)

        return (
            row.name,
            row.kind,
            size(row.budget_bytes),
            size(row.predicted_bytes),
            size(row.measured_bytes),
            ratio(row.measured_bytes, base.measured_bytes, ".1%"),
            ratio(row.flops, base.flops, ".3f"),
            ratio(row.modelled_seconds, base.modelled_seconds, ".3f"),
            ratio(row.product_flops, base.product_flops, ".3f"),
            ratio(row.executable_seconds, base.executable_seconds, ".3f"),
            "" if row.measured_ratio is None else f"{row.measured_ratio:.2f}",
            str(row.num_compilations),
            row.note,
        )


def optimal(rows: Iterable[Row]) -> list[Row]:
    """The rows that no other beats; of rows equal in bytes and time the first one."""
    kept: list[Row] = []
    for row in rows:
        if not any(other.beats(row) for other in kept):
            kept = [*(other for other in kept if not row.beats(other)), row]
    return kept


def at(budget: str) -> str:
    """The name of coop_jax's row at a budget, or at the bytes of a policy."""
    return f"coop_jax at {budget}"
