"""Threads: independent calls into the core at the same time.

The core lets go of Python's lock and changes none of its operands, so plans of several
graphs, or of one graph in several pools, take about as long as the longest of them where
there are as many processors. Results do not depend on it.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def at_once(call: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of a call for all items, in their order.

    Raises:
        Exception: what the call raised for the first of the items for which it did.
    """
    items = [*items]
    if len(items) < 2:
        return [call(item) for item in items]
    with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
        return [*pool.map(call, items)]
