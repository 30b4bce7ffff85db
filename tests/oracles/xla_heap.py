"""XLA's packing of blocks with known lifetimes, one block at a time, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

Block = tuple[int, int, int]  # first and last step, both included; bytes


def heap_bytes(blocks: Sequence[Block], alignment: int) -> int:
    """The better peak of largest first and longest-lived first, by best fit."""
    padded = [(f, n, -(-size // alignment) * alignment) for f, n, size in blocks if size]

    def by_size(block: Block) -> tuple[int, int]:
        return -block[2], block[0] - block[1]

    def by_lifetime(block: Block) -> tuple[int, int]:
        return block[0] - block[1], -block[2]

    return min(_best_fit(sorted(sorted(padded), key=key)) for key in (by_size, by_lifetime))


def _best_fit(blocks: Sequence[Block]) -> int:
    placed: list[tuple[int, Block]] = []
    peak = 0
    for block in blocks:
        first, last, size = block
        taken = sorted(
            (offset, offset + other[2])
            for offset, other in placed
            if other[0] <= last and first <= other[1]
        )
        gaps, end = [], 0
        for low, high in taken:
            if low - end >= size:
                gaps.append((low - end, end))
            end = max(end, high)
        offset = min(gaps, default=(0, end))[1]
        placed.append((offset, block))
        peak = max(peak, offset + size)
    return peak
