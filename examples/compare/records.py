"""Rows of comparisons on disk: a CSV and a table per network."""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import shlex
import sys
import typing

import jax

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
