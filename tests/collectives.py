"""Collectives of a compiled step, each times the iterations of the loops around it."""

from __future__ import annotations

import collections
import re
from typing import Any

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
)
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r" (" + "|".join(KINDS) + r")(?:-start)?\(")
_CALLED = re.compile(r"(?:body|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_ITERATIONS = re.compile(r'known_trip_count\\?":\{\\?"n\\?":\\?"(\d+)')


def collectives(compiled: Any) -> collections.Counter[str]:
    """By kind, how often one call runs it."""
    lines: dict[str, list[str]] = collections.defaultdict(list)
    computation = entry = ""
    for line in compiled.as_text().splitlines():
        head = None if line.startswith(" ") else _COMPUTATION.match(line)
        if head:
            computation = head[2]
            entry = computation if head[1] else entry
        lines[computation].append(line)
    counts: collections.Counter[str] = collections.Counter()

    def count(name: str, times: int) -> None:
        for line in lines[name]:
            if found := _OPERATION.search(line):
                counts[found[1]] += times
            elif " while(" in line:
                iterations = _ITERATIONS.search(line)
                assert iterations is not None, line
                count(_CALLED.search(line)[1], times * int(iterations[1]))
            elif " call(" in line or " conditional(" in line:
                for called in _CALLED.findall(line):
                    count(called, times)

    count(entry, 1)
    return counts
