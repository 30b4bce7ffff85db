"""Loops by hand: loops nested by hand and under policies, and coop_jax in their bytes.

    python examples/loops_by_hand.py [--write]

A recurrent network over 2,000 steps, gradients accumulated over 8 microbatches and a
simulation over 10,000 steps (`models/loops.py`): as written, under every
`jax.checkpoint` policy for the body, and as two loops, groups of iterations with
`jax.checkpoint` around each group, with the policy `nothing` for the body and without.
coop_jax is given the fewest bytes of all these, if its error does not name more, and the
smallest budget that it names. *Modelled ×* is the price of the executable's instructions
(`coop_jax.xla.executable_seconds`) relative to the step as written. Nothing is run.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import platform
from collections.abc import Callable, Iterator, Sequence

import jax
from budget_table import markdown
from loops_table import POLICIES, Row, Versions
from models.loops import accumulated, recurrent, simulation

RESULT = pathlib.Path(__file__).parent / "results" / "nested_loops_cpu.md"
# By title: the step, and about powers of two around the square root of its length that
# divide it.
STEPS: dict[str, tuple[Callable, Sequence[int]]] = {
    "A recurrent network of 2,000 steps": (recurrent, (10, 20, 40, 80, 200)),
    "Accumulation over 8 microbatches of 12 layers": (accumulated, (2, 3, 4, 6)),
    "A simulation of 10,000 steps": (simulation, (25, 50, 100, 125, 200, 400)),
}
BODIES = {
    "": None,
    ", checkpoint in the body": jax.checkpoint_policies.nothing_saveable,
}
COLUMNS = ("version", "XLA's bytes, MiB", "modelled ×", "iterations")


def by_hand(make: Callable, groups: Sequence[int]) -> Iterator[Row]:
    """Every version that is placed by hand."""
    versions = Versions("cpu", make)
    for name, policy in POLICIES.items():
        yield versions.under(name, policy)
    for group in groups:
        versions = Versions("cpu", functools.partial(make, group=group))
        for name, policy in BODIES.items():
            yield versions.under(f"groups of {group}{name}", policy)


def rows_of(make: Callable, groups: Sequence[int]) -> list[Row]:
    """The versions by hand, then coop_jax in the fewest bytes of theirs and in its own."""
    rows = list(by_hand(make, groups))
    versions = Versions("cpu", make)
    smallest = versions.smallest_budget()
    assert smallest is not None
    budgets = {max(smallest, min(row.total_bytes for row in rows)), smallest}
    ours = [versions.planned(budget) for budget in sorted(budgets)[::-1]]
    return sorted([*rows, *ours], key=lambda row: -row.total_bytes)


def table(title: str) -> str:
    make, groups = STEPS[title]
    rows = rows_of(make, groups)
    [first] = [row for row in rows if row.name == "as written"]
    shown = [
        [
            row.name,
            f"{row.total_bytes / 2**20:.2f}",
            f"{row.work.seconds / first.work.seconds:.3f}",
            row.note,
        ]
        for row in rows
    ]
    return f"### {title}\n\n{markdown(shown, COLUMNS)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true")
    is_written = parser.parse_args().write
    head = (
        f"`python examples/loops_by_hand.py --write`, Python {platform.python_version()}, "
        f"jax {jax.__version__}, two cores of a {platform.machine()} server. Compiled, not "
        "run."
    )
    text = "\n\n".join([head, *map(table, STEPS)]) + "\n"
    print(text)
    if is_written:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
