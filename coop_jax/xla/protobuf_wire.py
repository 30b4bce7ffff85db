"""Protobuf wire: the fields of an encoded protocol buffer, without a protobuf package.

Encoded messages are sequences of (field number, value); the numbers of the messages
that are read here are stable, so a few lines serve where a package would be needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Every field of a message: its number, and its value, an integer or bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
            value = data[at : at + length]
            at += length
        else:
            raise ValueError(f"protocol buffer wire type {wire} is not known")
        yield field, value


def integers(value: int | bytes) -> list[int]:
    """The integers of a repeated field: one number, or several packed into bytes."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


def repeated(data: bytes, wanted: int) -> list[int]:
    """All integers of one field of a message."""
    return [n for field, value in fields(data) if field == wanted for n in integers(value)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    number, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
