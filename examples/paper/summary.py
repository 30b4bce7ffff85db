"""Summary: what the table and the figures take from the rows."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence

from paper import records
from paper.experiment import COMPARED, Case, Row
from paper.networks import NETWORKS

LABELS = {
    "bilstm": "BiLSTM",
    "spos": "SPOS",
    "resnet50": "ResNet-50",
    "inception_v3": "Inception V3",
    "unet": "U-Net",
    "swin": "Swin-T",
    "bert_large": "BERT Large",
    "gpt3": "GPT-3 2.7B",
    "dtr": "DTR",
    "dte": "DTE",
    "coop": "Coop",
    "coop_no_window": "no window",
    "coop_no_partition": "no partition",
    "coop_no_in_place": "no in-place",
}


@dataclasses.dataclass(frozen=True)
class NetworkResults:
    """All rows of a network in a model."""

    case: Case
    rows: tuple[Row, ...]

    def methods(self) -> set[str]:
        return {row.method for row in self.rows}

    def curve(self, method: str) -> list[Row]:
        """The grid, from the largest budget down."""
        rows = [r for r in self.rows if r.method == method and r.kind == "grid"]
        return sorted(rows, key=lambda row: -row.ratio)

    def minimum_bytes(self, method: str) -> int:
        """The smallest pool with a plan: by bisection or on the grid.

        Feasibility isn't monotone, so the grid may know a smaller one.
        """
        return min(
            row.pool_bytes
            for row in self.rows
            if row.method == method and row.outcome == "ok"
        )

    def tightest_ratio(self, methods: Iterable[str] = COMPARED) -> float | None:
        """The smallest ratio of the grid at which all these methods have a plan."""
        feasible = [
            {row.ratio for row in self.curve(method) if row.outcome == "ok"}
            for method in methods
        ]
        return min(set.intersection(*feasible), default=None)

    def at(self, method: str, ratio: float) -> Row:
        return next(row for row in self.curve(method) if row.ratio == ratio)

    def tightest(self, methods: Sequence[str] = COMPARED) -> dict[str, Row]:
        """The rows at `tightest_ratio`, by method."""
        ratio = self.tightest_ratio(methods)
        return {} if ratio is None else {m: self.at(m, ratio) for m in methods}


def load(folder: pathlib.Path, model: str) -> dict[str, NetworkResults]:
    """By network, in the paper's order; those with all three compared methods."""
    found = {}
    rows = list(records.rows(folder))
    for network in NETWORKS:
        case = records.cases(folder).get(network, model)
        if case is None:
            continue
        own = tuple(r for r in rows if (r.network, r.model) == (network, model))
        results = NetworkResults(case, own)
        if results.methods().issuperset(COMPARED):
            found[network] = results
    return found
