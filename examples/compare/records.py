"""Rows of comparisons on disk: a CSV per network, tables, and a summary of them all."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import shlex
import statistics
import sys
import typing
from collections.abc import Mapping

import jax
from scipy.stats import spearmanr

from coop_jax import Comparison, Row

_FIELDS = [field.name for field in dataclasses.fields(Row)]
_PACKAGES = ("coop-jax", "jax", "jaxlib", "flax", "optax")


def _type(hint: typing.Any) -> type:
    kinds = [kind for kind in (*typing.get_args(hint), hint) if isinstance(kind, type)]
    return next((kind for kind in kinds if kind is not type(None)), str)


_TYPES = {name: _type(hint) for name, hint in typing.get_type_hints(Row).items()}


def path(folder: pathlib.Path, network: str) -> pathlib.Path:
    return folder / f"{network}.csv"


def read(folder: pathlib.Path, network: str) -> list[Row]:
    """The rows that were saved, in the order in which they were made."""
    file = path(folder, network)
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        return [_parsed(fields) for fields in csv.DictReader(lines)]


def append(folder: pathlib.Path, network: str, row: Row) -> None:
    file = path(folder, network)
    folder.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, _FIELDS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(
            {
                name: f"{value:.6g}" if isinstance(value, float) else value
                for name, value in dataclasses.asdict(row).items()
            }
        )


def write_table(folder: pathlib.Path, network: str, comparison: Comparison) -> None:
    text = f"{provenance()}\n\n{comparison.markdown()}\n"
    (folder / f"{network}.md").write_text(text)


def write_summary(folder: pathlib.Path, networks: list[str]) -> pathlib.Path:
    """For every network with rows: each policy, and coop_jax within the policy's bytes."""
    networks = [network for network in networks if _is_begun(folder, network)]
    comparisons = {
        network: Comparison(folder.name, tuple(read(folder, network)))
        for network in networks
    }
    is_measured = any(
        row.measured_ratio is not None for c in comparisons.values() for row in c.rows
    )
    is_by_executables = all(
        row.executable_seconds is not None
        for c in comparisons.values()
        for row in c.rows
        if row.modelled_seconds is not None
    )
    priced = "executable" if is_by_executables else "modelled time"
    header = [
        "network",
        "policy",
        "XLA's bytes, MiB",
        f"{priced} ×",
        "coop_jax, MiB",
        f"{priced} ×",
        *(["products ×", "coop_jax ×"] if is_by_executables else []),
        *(["measured ×", "coop_jax ×"] if is_measured else []),
    ]
    table = [header, ["---", "---", *["---:"] * (len(header) - 2)]]
    num_policies = num_beaten = 0
    ratios: list[float] = []
    for network, comparison in comparisons.items():
        base = comparison.unmodified
        table.append(
            [network, "as written", _mebibytes(base.measured_bytes), "1.000", "", ""]
        )
        num_policies += sum(
            row.kind == "checkpoint" and row.modelled_seconds is not None
            for row in comparison.rows
        )
        matched = {policy.name: ours for policy, ours in comparison.matched()}
        for policy in comparison.rows:
            if policy.kind != "checkpoint" or policy.modelled_seconds is None:
                continue
            table.append([network, policy.name, *_figures(policy, base)])
            ours = matched.get(policy.name)
            if ours is None:
                table[-1] += ["does not fit", ""]
                continue
            num_beaten += ours.beats(policy)
            ratios.append(_seconds(ours) / _seconds(policy))
            table[-1] += [*_figures(ours, base)]
            if is_by_executables:
                table[-1] += (
                    _ratio(row.product_flops, base.product_flops) for row in (policy, ours)
                )
            if is_measured:
                table[-1] += map(_number, (policy.measured_ratio, ours.measured_ratio))
        planned = [
            row for row in comparison.rows if row.kind == "coop_jax" and row.measured_bytes
        ]
        if planned:
            least = min(planned, key=lambda row: row.measured_bytes)
            table.append([network, "the fewest bytes", "", "", *_figures(least, base)])
    lines = [provenance(), ""]
    for cells in table:
        lines.append(f"| {' | '.join(cells + [''] * (len(header) - len(cells)))} |")
    lines += [
        "",
        f"{num_beaten} of {num_policies} policy rows are beaten: coop_jax needs at most "
        f"their bytes and at most their {priced}'s seconds. Ours relative to the policy's, "
        f"where ours is feasible: median {statistics.median(ratios):.3f}, at most "
        f"{max(ratios):.3f}."
        if is_by_executables and ratios
        else f"{num_beaten} of {num_policies} policy rows are beaten: coop_jax needs at "
        "most their bytes and at most their modelled time.",
        "",
        *_prediction(folder, networks),
        *_time_model(comparisons),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "README.md"
    file.write_text("\n".join(lines) + "\n")
    return file


def _is_begun(folder: pathlib.Path, network: str) -> bool:
    """Are there rows of the step as written, and of coop_jax?"""
    return {"unmodified", "coop_jax"} <= {row.kind for row in read(folder, network)}


def _figures(row: Row, base: Row) -> tuple[str, str]:
    return (
        _mebibytes(row.measured_bytes),
        _ratio(row.seconds, base.seconds),
    )


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


def _prediction(folder: pathlib.Path, networks: list[str]) -> list[str]:
    """How far predicted bytes were from XLA's, over all rows, and what planning took."""
    errors = []
    for_budgets, for_smallest = [], []
    for network in networks:
        rows = tuple(read(folder, network))
        errors += map(abs, Comparison(folder.name, rows).prediction_errors())
        for row in rows:
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


def _time_model(comparisons: Mapping[str, Comparison]) -> list[str]:
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


def provenance() -> str:
    """The command, the versions and the kind of machine."""
    command = shlex.join(["python", "examples/compare/reproduce.py", *_repeated()])
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if jax.default_backend() != "cpu":  # The first line says what the driver is.
        device = jax.devices()[0]
        [driver, *_] = device.client.platform_version.splitlines()
        machine = f"{device.device_kind}, {driver}; {machine}"
    return f"`{command}`; Python {platform.python_version()}, {versions}; {machine}."


def _repeated() -> list[str]:
    """The script's arguments, but for where its rows went."""
    arguments = sys.argv[1:]
    if "--results" in arguments:
        at = arguments.index("--results")
        del arguments[at : at + 2]
    return arguments


def _parsed(fields: dict[str, str]) -> Row:
    return Row(
        **{
            name: None if text == "" and name != "note" else _TYPES[name](text)
            for name, text in fields.items()
        }
    )


def _mebibytes(count: int | None) -> str:
    return "" if count is None else f"{count / 2**20:.0f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "" if value is None or not base else f"{value / base:.3f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
