"""Document: a plan file as JSON, with a version and a digest, and access to its parts.

Whoever reads a part says what it must be; anything else is a `PlanFault` that names the
part: nothing of a file is trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from coop_jax.base.strict_values import LARGEST_INT64, shown

FORMAT = "coop_jax plan"
VERSION = 10
_WIDTH = 100
_LONGEST_ROW = 4  # Items that always share a line.


class PlanFault(Exception):
    """What is wrong with a plan file, as a sentence without the file's name."""


def text_of(contents: Mapping[str, Any]) -> str:
    """A document as the text of a file: `contents` with format, version and digest."""
    head = {"format": FORMAT, "version": VERSION, "digest": _digest(contents)}
    return _written({**head, **contents}, "") + "\n"


def contents_of(text: str) -> dict[str, Any]:
    """The contents of a file's text, unread beyond format, version and digest.

    Raises:
        PlanFault: it is not JSON, no plan file, of another version, or was changed.
    """
    try:
        document = json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates
        )
    except (ValueError, RecursionError) as error:
        raise PlanFault(f"It is not the JSON of a plan file: {shown(str(error))}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PlanFault(f'It is no plan file: it has no `"format": "{FORMAT}"`')
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise PlanFault(
            f"Its format is version {shown(version)}, and this coop_jax reads version "
            f"{VERSION}"
        )
    digest = document.get("digest")
    contents = {k: v for k, v in document.items() if k not in _HEAD}
    if digest != _digest(contents):
        raise PlanFault("It was changed after it was written: its digest is another one")
    return contents


_HEAD = ("format", "version", "digest")


def _digest(contents: Mapping[str, Any]) -> str:
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of a plan")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in one object")
    return found


def _written(value: Any, indent: str) -> str:
    """JSON for reading: what fits a line takes one, and short items share lines."""
    line = json.dumps(value)
    is_row = isinstance(value, list) and not any(isinstance(v, dict | list) for v in value)
    if len(indent) + len(line) <= _WIDTH or (is_row and len(value) <= _LONGEST_ROW):
        return line
    if not isinstance(value, dict | list):
        return line
    inner = indent + " "
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_written(item, inner)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(inner + item for item in items) + f"\n{indent}}}"
    lines = [""]
    for item in value:
        written = _written(item, inner)
        shares = "\n" not in written and len(value) > 1 and len(written) < _WIDTH // 3
        if shares and lines[-1] and len(inner) + len(lines[-1] + written) + 2 <= _WIDTH:
            lines[-1] += f", {written}"
        else:
            lines += [written]
    return "[\n" + ",\n".join(inner + line for line in lines if line) + f"\n{indent}]"


class Node:
    """A part of a document.

    Arguments:
        value: the part, as JSON has it.
        where: its place, as `plan.schedule.steps[3]`.
    """

    def __init__(self, value: Any, where: str) -> None:
        self.value = value
        self.where = where

    def fault(self, rule: str) -> PlanFault:
        """The error that this part is not what it must be."""
        return PlanFault(f"`{self.where}` must be {rule}. Got {shown(self.value)}")

    def fields(self, *names: str) -> Iterator[Node]:
        """The values of an object with these keys and no others, in this order."""
        if not isinstance(self.value, dict) or set(self.value) != set(names):
            raise self.fault(f"an object with the keys {', '.join(names)}")
        prefix = f"{self.where}." if self.where else ""
        return (Node(self.value[name], prefix + name) for name in names)

    def items(self) -> list[Node]:
        """The items of a list."""
        if not isinstance(self.value, list):
            raise self.fault("a list")
        return [Node(item, f"{self.where}[{i}]") for i, item in enumerate(self.value)]

    def row(self, length: int) -> list[Node]:
        """The items of a list of so many."""
        items = self.items()
        if len(items) != length:
            raise self.fault(f"a list of {length}")
        return items

    def number(self, least: int = 0, most: int = LARGEST_INT64) -> int:
        """A whole number in a range."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.fault(f"a whole number from {least} to {most}")
        return self.value

    def flag(self) -> bool:
        """True or False."""
        if type(self.value) is not bool:
            raise self.fault("true or false")
        return self.value

    def text(self) -> str:
        """A string."""
        if type(self.value) is not str:
            raise self.fault("a string")
        return self.value

    def one_of(self, known: Collection[str]) -> str:
        """One of the strings."""
        if type(self.value) is not str or self.value not in known:
            raise self.fault(f"one of {', '.join(known)}")
        return self.value

    def named(self, known: Mapping[str, Any]) -> Any:
        """What a name stands for."""
        if type(self.value) is not str or self.value not in known:
            raise self.fault("the name of a value of the step, as `in3` or `eqn12.1`")
        return known[self.value]

    def each(self, read: Callable[[Node], Any]) -> list[Any]:
        """The items of a list, each read by a function."""
        return [read(item) for item in self.items()]

    def numbers(self, most_key: int, most: int) -> dict[int, int]:
        """Rows of two whole numbers, as a dictionary; each at most so large."""
        rows = (item.row(2) for item in self.items())
        return {key.number(0, most_key): n.number(0, most) for key, n in rows}
