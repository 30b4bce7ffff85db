"""How long it takes to refuse a room that no plan is found for.

    python examples/refused_rooms.py

Random graphs of the families of `tests/oracles/random_graphs.py` in rooms at the lower
bound on bytes, a little above it and below it, with addresses in a pool and with a limit of
the bytes alive. At the bound and above a plan may exist that is not found. Seconds of the
processor; a row is of all families, "refused" says in how many rooms no plan was found.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests"))

from oracles import random_graphs

from coop_jax import planning

SIZES = (500, 1000, 2000)
SHARES = (99, 100, 102)  # Of the lower bound, in %.
COLUMNS = ("operations", "of the bound, %", "rooms", "refused", "s, median", "s, worst")


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |")
    print("|" + " ---: |" * len(COLUMNS))
    for num_ops in SIZES:
        for share in SHARES:
            rooms = 2 * len(random_graphs.FAMILIES)
            took = refused(num_ops, share)
            seconds = "– | –"
            if took:
                seconds = f"{statistics.median(took):.1f} | {max(took):.1f}"
            print(
                f"| {num_ops} | {share} | {rooms} | {len(took)} | {seconds} |", flush=True
            )


def refused(num_ops: int, share: int) -> list[float]:
    """Seconds of the rooms that are refused, of all families."""
    took = []
    for family in random_graphs.FAMILIES.values():
        graph = family(num_ops, 0)
        room = share * planning.lower_bound(graph)[0] // 100
        for limits_live_bytes in (True, False):
            start = time.process_time()
            try:
                planning.plan_graph(graph, room, limits_live_bytes=limits_live_bytes)
            except planning.InfeasiblePoolError:
                took.append(time.process_time() - start)
    return took


if __name__ == "__main__":
    main()
