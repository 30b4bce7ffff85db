"""Summary: what the rows of all networks of a comparison say together.

For every network each policy, and coop_jax within the policy's bytes; then how many rows
are beaten by price and by the clock, how well bytes were predicted, and how well prices
rank measured times.
"""

from __future__ import annotations

import pathlib
import statistics
from collections.abc import Mapping

from compare import records
from scipy.stats import spearmanr

from coop_jax import Comparison, Row

# Measured times differ by so much from run to run: up to it a row is as fast.
_AS_FAST = 1.02

Comparisons = Mapping[str, Comparison]


def write_summary(folder: pathlib.Path, networks: list[str]) -> pathlib.Path:
    """The README of a folder of results: the table of every network with rows, and what
    they say together."""
    comparisons = {
        network: Comparison(folder.name, tuple(records.read(folder, network)))
        for network in networks
        if _is_begun(folder, network)
    }
    lines = [
        *(records.provenance(), ""),
        *(*_table(comparisons), ""),
        *(_beaten(comparisons), ""),
        *_prediction(comparisons),
        *_measured(comparisons),
        *_time_model(comparisons),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "README.md"
    file.write_text("\n".join(lines) + "\n")
    return file


def _table(comparisons: Comparisons) -> list[str]:
    """A row per network and policy, with coop_jax in its bytes."""
    priced = _priced(comparisons)
    header = ["network", "policy", "XLA's bytes, MiB", f"{priced} ×"]
    header += ["coop_jax, MiB", f"{priced} ×"]
    if _has_executables(comparisons):
        header += ["products ×", "coop_jax ×"]
    if _is_measured(comparisons):
        header += ["measured ×", "coop_jax ×"]
    table = [header, ["---", "---", *["---:"] * (len(header) - 2)]]
    for network, comparison in comparisons.items():
        base = comparison.unmodified
        as_written = _mebibytes(base.measured_bytes)
        table.append([network, "as written", as_written, "1.000", "", ""])
        matched = {policy.name: ours for policy, ours in comparison.matched()}
        for policy in _policies(comparison):
            cells = _cells(policy, matched.get(policy.name), base, comparisons)
            table.append([network, *cells])
        ours = [r for r in comparison.rows if r.kind == "coop_jax" and r.measured_bytes]
        if ours:
            least = min(ours, key=lambda row: row.measured_bytes)
            table.append([network, "the fewest bytes", "", "", *_figures(least, base)])
    padded = (cells + [""] * (len(header) - len(cells)) for cells in table)
    return [f"| {' | '.join(cells)} |" for cells in padded]


def _cells(policy: Row, ours: Row | None, base: Row, comparisons: Comparisons) -> list[str]:
    """Of a policy's row, behind the network's name."""
    cells = [policy.name, *_figures(policy, base)]
    if ours is None:
        return [*cells, "does not fit", ""]
    cells += _figures(ours, base)
    if _has_executables(comparisons):
        cells += (_ratio(row.product_flops, base.product_flops) for row in (policy, ours))
    if _is_measured(comparisons):
        cells += map(_number, (policy.measured_ratio, ours.measured_ratio))
    return cells


def _beaten(comparisons: Comparisons) -> str:
    """How many policy rows are beaten by price, and by how much."""
    priced = _priced(comparisons)
    num_policies = sum(len(_policies(each)) for each in comparisons.values())
    pairs = _pairs(comparisons)
    beaten = sum(ours.beats(policy) for policy, ours in pairs)
    text = (
        f"{beaten} of {num_policies} policy rows are beaten: coop_jax needs at most their "
        "bytes and at most their "
    )
    if not _has_executables(comparisons) or not pairs:
        return f"{text}modelled time."
    ratios = [_seconds(ours) / _seconds(policy) for policy, ours in pairs]
    return (
        f"{text}{priced}'s seconds. Ours relative to the policy's, where ours is feasible: "
        f"median {statistics.median(ratios):.3f}, at most {max(ratios):.3f}."
    )


def _measured(comparisons: Comparisons) -> list[str]:
    """Measured times relative to the policies', where both were run."""
    ratios = [
        ours.measured_ratio / policy.measured_ratio
        for policy, ours in _pairs(comparisons)
        if policy.measured_ratio and ours.measured_ratio
    ]
    if not ratios:
        return []
    num_fast = sum(ratio <= _AS_FAST for ratio in ratios)
    return [
        "",
        "Measured times relative to the policy's, where ours is feasible: median "
        f"{statistics.median(ratios):.2f}, at most {_AS_FAST} in {num_fast} of "
        f"{len(ratios)} rows, at most {max(ratios):.2f}.",
    ]


def _prediction(comparisons: Comparisons) -> list[str]:
    """How far predicted bytes were from XLA's, over all rows, and what planning took."""
    errors: list[float] = []
    for_budgets, for_smallest = [], []
    for comparison in comparisons.values():
        errors += map(abs, comparison.prediction_errors())
        for row in comparison.rows:
            if row.kind == "coop_jax" and row.measured_bytes is not None:
                is_smallest = row.name == "coop_jax, smallest"
                # Two of them are of the unmodified step, shared by all budgets.
                compilations = row.num_compilations - 2
                (for_smallest if is_smallest else for_budgets).append(compilations)
    if not errors or not for_budgets:
        return []
    smallest = f"; for the smallest, at most {max(for_smallest)}" if for_smallest else ""
    return [
        f"Predicted against XLA's bytes, {len(errors)} rows: median error "
        f"{statistics.median(errors):.1%}, worst {max(errors):.1%}. Compilations of a "
        f"planned step for a budget: median {statistics.median(for_budgets):g}, at most "
        f"{max(for_budgets)}{smallest}."
    ]


def _time_model(comparisons: Comparisons) -> list[str]:
    """How well modelled times rank the measured ones of a network's rows."""
    correlations = {}
    for network, comparison in comparisons.items():
        times = [
            (row.seconds, row.measured_ratio)
            for row in comparison.rows
            if row.seconds is not None and row.measured_ratio is not None
        ]
        if len(times) > 2:
            correlations[network] = float(spearmanr(*zip(*times, strict=True)).statistic)
    if not correlations:
        return []
    of_least = min(correlations, key=correlations.__getitem__)
    return [
        "",
        "Modelled against measured times of a network's rows, Spearman's rank correlation: "
        f"median {statistics.median(correlations.values()):.2f}, least "
        f"{correlations[of_least]:.2f} ({of_least}).",
    ]


def _is_begun(folder: pathlib.Path, network: str) -> bool:
    """Are there rows of the step as written, and of coop_jax?"""
    kinds = {row.kind for row in records.read(folder, network)}
    return {"unmodified", "coop_jax"} <= kinds


def _has_executables(comparisons: Comparisons) -> bool:
    """Whether all rows are priced by the instructions of their executables."""
    rows = (row for each in comparisons.values() for row in each.rows)
    return all(r.executable_seconds is not None for r in rows if r.modelled_seconds)


def _is_measured(comparisons: Comparisons) -> bool:
    rows = (row for each in comparisons.values() for row in each.rows)
    return any(row.measured_ratio is not None for row in rows)


def _priced(comparisons: Comparisons) -> str:
    return "executable" if _has_executables(comparisons) else "modelled time"


def _policies(comparison: Comparison) -> list[Row]:
    """The rows of policies that count: those at XLA's defaults do not."""
    rows = comparison.rows
    return [r for r in rows if r.kind == "checkpoint" and r.modelled_seconds is not None]


def _pairs(comparisons: Comparisons) -> list[tuple[Row, Row]]:
    """All policies with the rows of coop_jax in their bytes."""
    return [pair for each in comparisons.values() for pair in each.matched()]


def _figures(row: Row, base: Row) -> tuple[str, str]:
    return _mebibytes(row.measured_bytes), _ratio(row.seconds, base.seconds)


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.0f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "" if value is None or not base else f"{value / base:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
