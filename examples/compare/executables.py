"""Executables as files: what JAX serializes them to, compressed, and their rows."""

from __future__ import annotations

import json
import lzma
import pathlib
import pickle
from typing import Any

from jax.experimental.serialize_executable import deserialize_and_load, serialize

ARGUMENTS = "arguments"
"""The name of the executable that makes a step's arguments from a seed."""


def file_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"{name.replace(' ', '_')}.xz"


def save(folder: pathlib.Path, name: str, compiled: Any) -> None:
    with lzma.open(file_of(folder, name), "wb", preset=1) as file:
        pickle.dump(serialize(compiled), file)


def load(folder: pathlib.Path, name: str) -> Any:
    """The executable, on the devices that are there."""
    with lzma.open(file_of(folder, name), "rb") as file:
        return deserialize_and_load(*pickle.load(file))


def append_row(folder: pathlib.Path, row: dict[str, Any]) -> None:
    with (folder / "rows.jsonl").open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def read_rows(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The rows that have an executable of their own: policies may make one program."""
    lines = (folder / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if file_of(folder, row["name"]).exists()]
