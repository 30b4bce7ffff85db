"""Packing problems whose optimum is known: a rectangle of time and bytes, cut up."""

from __future__ import annotations

import numpy as np

HEIGHT = 1 << 20


def cut(num_blocks: int, seed: int, waste: float) -> list[tuple[int, int, int]]:
    """(first, last, bytes) of the pieces of a rectangle `HEIGHT` bytes high, shuffled.

    Cut again and again, in time or in bytes, a piece chosen by its area. Up to `waste` of
    the area goes as pieces get lower than they were cut; then `HEIGHT` is enough, and the
    most bytes alive at one step may be a little less.
    """
    random = np.random.default_rng(seed)
    steps = 4 * num_blocks
    pieces = [(0, steps, HEIGHT)]
    while len(pieces) < num_blocks:
        areas = np.array([(end - begin) * size for begin, end, size in pieces], float)
        chosen = int(random.choice(len(pieces), p=areas / areas.sum()))
        begin, end, size = pieces[chosen]
        in_time = random.random() < 0.5
        if (in_time and end - begin < 2) or (not in_time and size < 2):
            continue
        del pieces[chosen]
        if in_time:
            at = int(random.integers(begin + 1, end))
            pieces += [(begin, at, size), (at, end, size)]
        else:
            at = int(random.integers(1, size))
            pieces += [(begin, end, at), (begin, end, size - at)]
    left = waste * steps * HEIGHT
    for i in random.permutation(len(pieces)):
        begin, end, size = pieces[i]
        lost = min(int(size * 4 * waste * random.random()), size - 1)
        if lost * (end - begin) <= left:
            left -= lost * (end - begin)
            pieces[i] = (begin, end, size - lost)
    random.shuffle(pieces)
    return [(begin, end - 1, size) for begin, end, size in pieces]
