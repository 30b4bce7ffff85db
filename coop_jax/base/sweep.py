"""Sweep: live bytes over time, from blocks with a beginning and an end."""

from __future__ import annotations

import numpy as np


def bytes_over_time(
    first: np.ndarray, last: np.ndarray, size: np.ndarray, count: int
) -> np.ndarray:
    """Live bytes at each of `count` times.

    Arguments:
        first, last: int[n], the first and the last time at which a block is alive. A block
            that lasts longer than `count` times is alive to the end; one that ends before
            it begins is never alive.
        size: int[n], bytes.

    Returns:
        int64[count], bytes.
    """
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, first, size)
    np.add.at(change, np.minimum(last, count - 1) + 1, -np.asarray(size, np.int64))
    return np.cumsum(change[:-1])
