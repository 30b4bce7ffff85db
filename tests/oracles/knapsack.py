"""Graphs whose least recomputation is that of a knapsack, and the knapsack's optimum.

Values are made at the beginning, an operation needs much room, then each value is read
once: of those that are not kept behind the operation, the bytes have to be as many as the
room lacks, and their seconds are what is recomputed.
"""

from __future__ import annotations

import numpy as np

from coop_jax import planning

SECONDS_AT_THE_END = 1e-9  # Of an operation that reads one of the values.


def graph(sizes: np.ndarray, seconds: np.ndarray) -> planning.Graph:
    """Each value is made from an external input, which keeps no room."""
    count = len(sizes)
    wide = count + 1  # The tensor that the wide operation makes.
    inputs = [[0]] * (count + 1) + [[wide + i, i + 1] for i in range(count)]
    return planning.Graph(
        op_seconds=np.concatenate([seconds, [1.0], np.full(count, SECONDS_AT_THE_END)]),
        op_workspace_bytes=np.array([0] * count + [int(sizes.sum())] + [0] * count),
        op_recomputable=np.ones(2 * count + 1, bool),
        op_inputs_ptr=np.cumsum([0, *map(len, inputs)]),
        op_inputs=np.concatenate(inputs),
        op_outputs_ptr=np.arange(2 * count + 2),
        op_outputs=np.arange(1, 2 * count + 2),
        tensor_bytes=np.concatenate([[1], sizes, np.ones(count + 1, np.int64)]),
        tensor_external=np.arange(2 * count + 2) == 0,
        tensor_pinned=np.zeros(2 * count + 2, bool),
        tensor_output=np.arange(2 * count + 2) == 2 * count + 1,
        in_place=np.zeros((0, 3), np.int64),
        overwrites=np.zeros((0, 3), np.int64),
    )


def least_seconds(sizes: np.ndarray, seconds: np.ndarray, lacking: int) -> float:
    """Of values of together at least `lacking` bytes: by dynamic programming over bytes."""
    best = np.full(int(sizes.sum()) + 1, np.inf)  # Of exactly so many bytes.
    best[0] = 0
    for size, cost in zip(sizes, seconds, strict=True):
        taken = np.full_like(best, np.inf)
        taken[size:] = best[:-size] + cost
        best = np.minimum(best, taken)
    return float(best[lacking:].min())
