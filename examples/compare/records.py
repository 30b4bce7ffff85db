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
    """For every network with rows: each policy, and coop_jax at the policy's bytes."""
    lines = [
        provenance(),
        "",
        "| network | policy | XLA's bytes, MiB | modelled time × | ours, MiB | "
        "modelled time × | measured × | ours × |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for network in networks:
        rows = read(folder, network)
        if not rows:
            continue
        comparison = Comparison(folder.name, tuple(rows))
        base = comparison.unmodified
        lines.append(
            f"| {network} | unmodified | {_mebibytes(base.measured_bytes)} | 1.000 "
            "| | | 1.00 | |"
        )
        for policy, ours in comparison.matched():
            cells = (
                network,
                policy.name,
                _mebibytes(policy.measured_bytes),
                _ratio(policy.modelled_seconds, base.modelled_seconds),
                _mebibytes(ours.measured_bytes) or ours.note,
                _ratio(ours.modelled_seconds, base.modelled_seconds),
                _number(policy.measured_ratio),
                _number(ours.measured_ratio),
            )
            lines.append(f"| {' | '.join(cells)} |")
        for row in rows:
            if row.name == "coop_jax, smallest":
                lines.append(
                    f"| {network} | the smallest budget | | "
                    f"| {_mebibytes(row.measured_bytes)} "
                    f"| {_ratio(row.modelled_seconds, base.modelled_seconds)} "
                    f"| | {_number(row.measured_ratio)} |"
                )
    lines += ["", *_prediction(folder, networks)]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "README.md"
    file.write_text("\n".join(lines) + "\n")
    return file


def _prediction(folder: pathlib.Path, networks: list[str]) -> list[str]:
    """How far predicted bytes were from XLA's, over all rows."""
    errors = []
    compilations = []
    for network in networks:
        rows = tuple(read(folder, network))
        errors += map(abs, Comparison(folder.name, rows).prediction_errors())
        # Two of them are of the unmodified step, shared by all budgets.
        compilations += [
            row.num_compilations - 2
            for row in rows
            if row.kind == "coop_jax" and row.measured_bytes is not None
        ]
    if not errors or not compilations:
        return []
    return [
        f"Predicted against XLA's bytes, {len(errors)} rows: median error "
        f"{statistics.median(errors):.1%}, worst {max(errors):.1%}. Compilations of a "
        f"planned step: median {statistics.median(compilations):g}, at most "
        f"{max(compilations)}."
    ]


def provenance() -> str:
    """The command, the versions and the kind of machine."""
    command = shlex.join(["python", "examples/compare/reproduce.py", *sys.argv[1:]])
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"`{command}`; Python {platform.python_version()}, {versions}; {machine}."


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
