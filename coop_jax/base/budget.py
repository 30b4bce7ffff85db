"""Budgets: `12 * 2**30`, `"12GiB"`, `"750MB"`, `"60%"`, `"device"`, `"no-xla-remat"` to
bytes."""

from __future__ import annotations

import math
import numbers
import re
from typing import Any

from coop_jax.targets import memory_bytes

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+|%)\s*", re.I)
# The memory of a device, in which XLA does not rematerialize by itself.
NO_XLA_REMAT = "no-xla-remat"
_OF_DEVICE = ("device", NO_XLA_REMAT)
# The part of a device's memory that is kept free: for the runtime's own buffers and for
# fragmentation of its allocator between steps.
_DEVICE_MARGIN = 0.05


def budget_of(caller: str) -> str:
    """The name that errors give to the budget argument of a public function."""
    return f"{caller}({'budgets' if caller == 'compare' else 'budget'}=...)"


def check_budget(budget: Any, caller: str = "remat_train_step") -> int | str:
    """The budget, checked where `remat_train_step` is called, before the step first runs.

    Returns:
        Bytes, or one of the strings that `resolve_budget` takes.

    Raises:
        TypeError: the budget is neither an int nor a string.
        ValueError: it is not positive, has an unknown form, or is more than 100 %."""
    argument = budget_of(caller)
    if isinstance(budget, bool) or not isinstance(budget, (numbers.Integral, str)):
        raise TypeError(
            f"`{argument}` must be a number of bytes (int) or a string "
            f'like "12GiB", "750MB", "60%" or "device". Got {budget!r} of type '
            f"{type(budget).__name__}."
        )
    if isinstance(budget, str):
        named = budget.strip().lower()
        if named == NO_XLA_REMAT and caller == "compare":
            raise ValueError(
                f"`{argument}` are kept by steps with the same options of XLA as the "
                f"policies that they are compared with. Got {budget!r}, which changes "
                'them: give "device", or use `fit`.'
            )
        if named in _OF_DEVICE:
            return named
        amount, unit = _parse(budget, argument)
        if not amount > 0 or (unit == "%" and amount > 100):
            raise ValueError(
                f"`{argument}` must be positive, and a percentage at "
                f"most 100% of what the unmodified step needs. Got {budget!r}."
            )
        return budget
    if budget <= 0:
        raise ValueError(f"`{argument}` must be positive. Got {budget} bytes.")
    return int(budget)


def resolve_budget(
    budget: int | str,
    unmodified_bytes: int,
    device: Any,
    caller: str = "remat_train_step",
) -> int:
    """A checked budget in bytes.

    Arguments:
        unmodified_bytes: bytes that the step needs as written; `"60%"` refers to it.
        device: the JAX device, present or absent, whose memory `"device"` and
            `"no-xla-remat"` refer to.
    """
    if isinstance(budget, int):
        return budget
    if budget in _OF_DEVICE:
        return _device_limit(budget, device, caller)
    amount, unit = _parse(budget, budget_of(caller))
    if unit == "%":
        return math.floor(unmodified_bytes * amount / 100)
    return math.floor(amount * _UNITS[unit])


def is_below_as_written(budget: int | str, least_bytes: int) -> bool:
    """Whether a checked budget is less than a step needs as written, which is not compiled
    yet.

    Arguments:
        least_bytes: bytes that the step needs at least.
    """
    if isinstance(budget, int):
        return budget < least_bytes
    if budget in _OF_DEVICE:
        return False
    amount, unit = _parse(budget, budget_of("remat_train_step"))
    return amount < 100 if unit == "%" else amount * _UNITS[unit] < least_bytes


def _parse(budget: str, argument: str) -> tuple[float, str]:
    match = _PATTERN.fullmatch(budget)
    if match is None or (match[2] != "%" and match[2].lower() not in _UNITS):
        raise ValueError(
            f"`{argument}` must look like "
            '"12GiB", "750MB", "60%", "device" or "no-xla-remat" (units: '
            f"B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, %). Got {budget!r}."
        )
    return float(match[1]), match[2].lower()


def _device_limit(budget: str, device: Any, caller: str) -> int:
    limit = memory_bytes(device)
    if limit is None:
        raise ValueError(
            f'`{caller}(budget="{budget}")` needs a device that reports its memory '
            f'limit; {device} does not. Give the budget in bytes, e.g. budget="12GiB".'
        )
    return math.floor(limit * (1 - _DEVICE_MARGIN))


def format_bytes(count: int | float) -> str:
    """Bytes as text for messages: `1536` -> `"1.50 KiB"`."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.2f} {unit}"
