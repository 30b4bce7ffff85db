"""Results on disk: one CSV of cases, one of rows, appended to as they are made."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import typing
from collections.abc import Iterable
from typing import Generic, TypeVar

from paper.experiment import Case, Row

RESULTS = pathlib.Path(__file__).parent / "results"

T = TypeVar("T", Case, Row)


class Records(Generic[T]):
    """The records of one type in a CSV, keyed by some of its fields."""

    def __init__(self, path: pathlib.Path, kind: type[T], key: tuple[str, ...]) -> None:
        self._path = path
        self._kind = kind
        self._key = key
        self._types = typing.get_type_hints(kind)
        self._fields = [field.name for field in dataclasses.fields(kind)]
        self._records: dict[tuple, T] = {}
        if path.exists():
            with path.open(newline="") as file:
                for fields in csv.DictReader(file):
                    self._keep(self._parse(fields))

    def __iter__(self) -> typing.Iterator[T]:
        return iter(self._records.values())

    def get(self, *key: object) -> T | None:
        return self._records.get(key)

    def append(self, records: Iterable[T]) -> None:
        """Keeps the records and writes them at once: an interrupted run loses little."""
        records = list(records)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, self._fields, lineterminator="\n")
            if is_new:
                writer.writeheader()
            for record in records:
                self._keep(record)
                writer.writerow(
                    {
                        name: f"{value:.6g}" if isinstance(value, float) else value
                        for name, value in dataclasses.asdict(record).items()
                    }
                )

    def drop(self, **fields: object) -> None:
        """Forgets the records with these fields, also on disk."""
        kept = [
            record
            for record in self
            if any(getattr(record, name) != value for name, value in fields.items())
        ]
        if len(kept) == len(self._records):
            return
        self._records = {}
        self._path.unlink()
        self.append(kept)

    def _keep(self, record: T) -> None:
        self._records[tuple(getattr(record, name) for name in self._key)] = record

    def _parse(self, fields: dict[str, str]) -> T:
        def value(name: str) -> object:
            text = fields[name]
            types = typing.get_args(self._types[name]) or (self._types[name],)
            return None if text == "" and type(None) in types else types[0](text)

        return self._kind(**{name: value(name) for name in self._fields})


def cases(folder: pathlib.Path = RESULTS) -> Records[Case]:
    return Records(folder / "cases.csv", Case, ("network", "model"))


def rows(folder: pathlib.Path = RESULTS) -> Records[Row]:
    # Of a method's minimum only one row: where it lies is its result.
    return Records(
        folder / "rows.csv", Row, ("network", "model", "method", "kind", "ratio")
    )
