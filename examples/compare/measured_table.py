"""The table of `run_ahead.py`'s measurements: seconds beside the price, bytes beside peaks.

python examples/compare/measured_table.py [results/measured/nvidia_h200.csv]
"""

from __future__ import annotations

import csv
import pathlib
import sys

from scipy.stats import spearmanr

RESULTS = pathlib.Path(__file__).parent / "results" / "measured"
COLUMNS = (
    "network",
    "step",
    "XLA's bytes, MiB",
    "allocator's peak, more by, bytes",
    "executable ×",
    "measured ×",
    "measured, ms",
    "spread, %",
    "loss differs by",
)


def main() -> None:
    path = pathlib.Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "nvidia_h200.csv"
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    text = f"{head(rows)}\n\n{table(rows)}\n\n{foot(rows)}\n"
    path.with_suffix(".md").write_text(text)
    print(text)


def head(rows: list[dict[str, str]]) -> str:
    first = rows[0]
    return (
        "`python examples/compare/compile_ahead.py FOLDER --networks ...` where no GPU is, "
        "then `python examples/compare/run_ahead.py FOLDER --results ...` where one is. "
        f"{first['device']}, driver {first['driver']}, JAX {first['jax']}."
    )


def table(rows: list[dict[str, str]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- | --- |" + " ---: |" * 7]
    for row in rows:
        written = as_written(rows, row["network"])
        cells = [
            row["network"],
            row["name"],
            f"{int(row['bytes']) / 2**20:.0f}",
            "",
            f"{ratio(row, written, 'price_seconds'):.3f}",
            *["did not run", "", "", ""],
        ]
        if row["seconds"]:
            cells[3] = f"{int(row['peak_bytes']) - int(row['bytes'])}"
            cells[5:] = [
                f"{ratio(row, written, 'seconds'):.3f}",
                f"{1e3 * float(row['seconds']):.2f}",
                f"{100 * float(row['spread']):.1f}",
                f"{float(row['loss_differs']):.1e}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def foot(rows: list[dict[str, str]]) -> str:
    rows = [row for row in rows if row["seconds"]]
    ranks = []
    for network in dict.fromkeys(row["network"] for row in rows):
        ours = [row for row in rows if row["network"] == network]
        prices, times = ([float(r[k]) for r in ours] for k in ("price_seconds", "seconds"))
        ranks.append(f"{network} {spearmanr(prices, times).statistic:.2f}")
    more = [int(row["peak_bytes"]) - int(row["bytes"]) for row in rows]
    beside = ", ".join(beside_policies(rows))
    return (
        "Measured seconds of planned steps relative to the policies' at their bytes: "
        f"{beside}. Spearman's rank correlation of price and measured seconds: "
        f"{', '.join(ranks)}. The allocator's peak exceeds XLA's figure by {min(more)} to "
        f"{max(more)} bytes."
    )


def beside_policies(rows: list[dict[str, str]]) -> list[str]:
    """The measured seconds of each planned step relative to the policy's."""
    by_name = {(row["network"], row["name"]): row for row in rows}
    found = []
    for (network, name), row in by_name.items():
        planned, _, policy = name.partition(" at ")
        if planned == "coop_jax":
            relative = ratio(row, by_name[network, policy], "seconds")
            found.append(f"{network} at `{policy}` {relative:.3f}")
    return found


def as_written(rows: list[dict[str, str]], network: str) -> dict[str, str]:
    return next(r for r in rows if r["network"] == network and r["name"] == "unmodified")


def ratio(row: dict[str, str], written: dict[str, str], figure: str) -> float:
    return float(row[figure]) / float(written[figure])


if __name__ == "__main__":
    main()
