"""Strict values: numbers and flags of exactly the type that is asked for.

Python counts True as 1 and NumPy reads "64" as a number; where bytes are planned both are
mistakes. `what` names the argument in the message, `todo` is its advice.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

_LONGEST = 80
LARGEST_INT64 = 2**63 - 1


def shown(value: Any) -> str:
    """`repr(value)`, cut off where a message would get unreadable."""
    try:
        text = repr(value)
    except ValueError:  # An integer of more digits than Python prints.
        return f"an {type(value).__name__} of too many digits"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def whole_bytes(
    what: str,
    value: Any,
    todo: str,
    *,
    least: int = -LARGEST_INT64 - 1,
    most: int = LARGEST_INT64,
) -> int:
    """The bytes, a Python or NumPy integer in a range and no bool, as an int.

    Raises:
        TypeError: the value is no such integer.
        ValueError: it is out of range.
    """
    try:
        number = None if _is_bool(value) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            f"{what} must be a whole number of bytes. Got {shown(value)}. {todo}"
        )
    if not least <= number <= most:
        raise ValueError(
            f"{what} must be in [{_power(least)}, {_power(most + 1)}). "
            f"Got {shown(value)}. {todo}"
        )
    return number


def real_number(what: str, value: Any, todo: str) -> float:
    """The value, a finite number that is not negative and no bool, as a float.

    Raises:
        TypeError: the value is no Python or NumPy number.
        ValueError: it is negative, infinite or not a number.
    """
    if _is_bool(value) or not isinstance(value, numbers.Real):
        raise TypeError(f"{what} must be a number. Got {shown(value)}. {todo}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(
            f"{what} must be finite and not negative. Got {shown(value)}. {todo}"
        )
    return number


def flag(what: str, value: Any, todo: str) -> bool:
    """The value, a Python or NumPy bool, as a bool.

    Raises:
        TypeError: the value is no bool, even if it is 0 or 1.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{what} must be True or False. Got {shown(value)}. {todo}")
    return bool(value)


def _is_bool(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return isinstance(value, bool) or kind == "b"


def _power(bound: int) -> str:
    """An integer as text: `2**48` for a power of two that is too long to be read."""
    size = abs(bound)
    if size < 2**20 or size & (size - 1):
        return str(bound)
    return f"{'-' if bound < 0 else ''}2**{size.bit_length() - 1}"
