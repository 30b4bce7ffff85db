"""README tables: fill the README and the pages of `docs` from committed results.

    python examples/readme_tables.py [--check]

A comment in a page names results, and the block right behind it, up to the next empty line,
becomes theirs:

* `<!-- a.md b.md -->`: the first table of each file, one after the other under one header;
  `<!-- a.md: table 3 -->`: the third table of the file; `<!-- a.md: rows gpt2 -->`: those
  rows of the first that begin with `gpt2`;
* `<!-- a.md: policies -->`: a summary of the rows that `compare/reproduce.py` made, over
  all networks, a row per group of `jax.checkpoint` policies;
* `<!-- a.md: head -->`: all that stands before its first table, as one paragraph: the
  command, the versions and the machine; `<!-- a.md: foot -->`: all behind the last one;
* `<!-- a.md: output 9 -->`: the first nine lines of the first fenced block, or all;
* `<!-- coop_jax.targets -->`: the table of targets.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import statistics
import sys
import textwrap
from collections.abc import Callable

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"
# The marker and the block behind it: a fenced one, or lines up to an empty one.
_BLOCK = re.compile(
    r"^<!-- (?P<paths>[\w./-]+\.md(?: [\w./-]+\.md)*|coop_jax\.targets)"
    r"(?:: (?P<what>[a-z]+)(?: (?P<which>[\w-]+))?)? -->\n"
    r"(?:```\w*\n(?:.*\n)*?```\n|(?:.+\n)*)",
    re.MULTILINE,
)
_WIDTH = 92


def pages() -> list[pathlib.Path]:
    """The pages that are filled: the README and everything in `docs`."""
    return [README, *sorted((ROOT / "docs").glob("**/*.md"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if anything changes")
    args = parser.parse_args()
    for page in pages():
        before = page.read_text()
        after = with_tables(before)
        if args.check and after != before:
            sys.exit(f"{page.name}: not filled from the results. Run this script.")
        page.write_text(after)


def with_tables(text: str) -> str:
    """A page with all its blocks made again."""

    def filled(match: re.Match[str]) -> str:
        block = _BLOCKS[match["what"] or "table"](match["paths"].split(), match["which"])
        return f"{match[0].splitlines()[0]}\n{block}\n"

    return _BLOCK.sub(filled, text)


def table(paths: list[str], number: str | None = None) -> str:
    """The rows of a table of all files below the header of the first."""
    if paths == ["coop_jax.targets"]:
        return _targets()
    lines: list[str] = []
    for path in paths:
        rows = _tables(_read(path))[int(number or 1) - 1]
        lines += rows if not lines else rows[2:]
    return "\n".join(lines)


def rows(paths: list[str], first_cell: str | None) -> str:
    """The rows of a table whose first cell is the given one."""
    head, rule, *body = table(paths).splitlines()
    kept = [line for line in body if line.split("|")[1].strip() == first_cell]
    return "\n".join([head, rule, *kept])


def policies(paths: list[str], _: str | None = None) -> str:
    """The needs of policies and coop_jax, over all networks of a comparison."""
    found = [row for path in paths for row in _policy_rows(path)]
    header = ["`jax.checkpoint` policy", "rows", "its bytes", "ours"]
    priced = _header(paths[0])[3]  # Modelled time, or that of the executable.
    header += [f"its {priced}", "ours ×"]
    is_measured = any(row.measured is not None for row in found)
    if is_measured:
        header += ["its measured time ×", "ours ×"]
    lines = [_line(header), _line(["---"] + ["---:"] * (len(header) - 1))]
    groups = {f"`{name}`": [r for r in found if r.policy == name] for name in _BY_RULE}
    groups["saved by name"] = [r for r in found if r.policy not in _BY_RULE]
    groups["all"] = found
    for name, all_of_group in groups.items():
        group = [row for row in all_of_group if row.bytes is not None]
        fits = f"{len(group)} of " if len(group) < len(all_of_group) else ""
        figures = [""] * (len(header) - 2)
        if group:
            figures = [
                f"{_mean(group, lambda r: r.policy_bytes / r.unmodified_bytes):.1%}",
                f"{_mean(group, lambda r: r.bytes / r.unmodified_bytes):.1%}",
                f"{_mean(group, lambda r: r.policy_time):.3f}",
                f"{_mean(group, lambda r: r.time):.3f}",
            ]
            if is_measured:
                figures += [
                    f"{_mean(group, lambda r: r.policy_measured):.2f}",
                    f"{_mean(group, lambda r: r.measured):.2f}",
                ]
        num_rows = f"{fits}{len(all_of_group)}"
        lines.append(_line([name, num_rows, *figures]))
    fewest = [x for path in paths for x in _fewest(path)]
    least = statistics.geometric_mean(part for part, _ in fewest)
    time = statistics.geometric_mean(time for _, time in fewest)
    cells = ["the fewest bytes", f"{len(fewest)}", "", f"{least:.1%}", "", f"{time:.3f}"]
    lines.append(_line(cells + [""] * (len(header) - len(cells))))
    return "\n".join(lines)


def head(paths: list[str], _: str | None = None) -> str:
    """The text of a results file before its first heading or table, as one paragraph."""
    return _wrapped(re.split(r"^(?:\||```|#)", _read(paths[0]), flags=re.MULTILINE)[0])


def foot(paths: list[str], _: str | None = None) -> str:
    """All that a results file says behind its last table, as one paragraph."""
    return _wrapped(_read(paths[0]).rpartition("|\n")[2])


def output(paths: list[str], num_lines: str | None = None) -> str:
    """The fenced block of a results file, which a script printed; or its first lines."""
    printed = re.search(r"^```\n((?:.*\n)*?)```$", _read(paths[0]), re.MULTILINE)[1]
    lines = printed.splitlines()[: num_lines and int(num_lines)]
    return "\n".join(["```", *lines, "```"])


@dataclasses.dataclass(frozen=True)
class PolicyRow:
    """A policy on one network, with the row of coop_jax that was matched to it.

    Bytes in MiB, times relative to the step as written. `bytes` and `time` are None where
    no plan of coop_jax fits into the policy's bytes, measured times where nothing was run.
    """

    policy: str
    unmodified_bytes: float
    policy_bytes: float
    policy_time: float
    bytes: float | None
    time: float | None
    policy_measured: float | None = None
    measured: float | None = None


_BY_RULE = ("nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")
_AS_WRITTEN, _FEWEST = "as written", "the fewest bytes"


def _policy_rows(path: str) -> list[PolicyRow]:
    cells = _cells(path)
    names = _header(path)
    at = names.index("measured ×") if "measured ×" in names else len(names)
    unmodified = {c[0]: float(c[2]) for c in cells if c[1] == _AS_WRITTEN}
    return [
        PolicyRow(c[1], unmodified[c[0]], *map(_number, (*c[2:6], *c[at : at + 2])))
        for c in cells
        if c[1] not in (_AS_WRITTEN, _FEWEST)
    ]


def _fewest(path: str) -> list[tuple[float, float]]:
    """Of every network the fewest bytes, as a part of the step as written, and the time."""
    cells = _cells(path)
    unmodified = {c[0]: float(c[2]) for c in cells if c[1] == _AS_WRITTEN}
    return [(float(c[4]) / unmodified[c[0]], float(c[5])) for c in cells if c[1] == _FEWEST]


def _mean(rows: list[PolicyRow], of: Callable[[PolicyRow], float]) -> float:
    return statistics.geometric_mean(map(of, rows))


def _targets() -> str:
    from coop_jax import targets

    lines = [
        "| target | platform | memory, GiB | TB/s | TFLOP/s, 32 bits | 16 bits |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name in targets.names():
        target = targets.named(name)
        memory = target.memory_bytes
        lines.append(
            f"| `{name}` | {target.platform} "
            f"| {'' if memory is None else f'{memory / 2**30:.2f}'} "
            f"| {target.bytes_per_second / 1e12:g} "
            f"| {target.matrix_rate(4) / 1e12:g} | {target.matrix_rate(2) / 1e12:g} |"
        )
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _read(path: str) -> str:
    return (ROOT / path).read_text()


def _tables(text: str) -> list[list[str]]:
    """The lines of every table."""
    found = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    return [block.splitlines() for block in found]


def _header(path: str) -> list[str]:
    """The names of the columns of a file's first table."""
    return [name.strip() for name in _tables(_read(path))[0][0].strip("|").split("|")]


def _cells(path: str) -> list[list[str]]:
    rows = _tables(_read(path))[0][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _number(cell: str) -> float | None:
    return None if cell in ("", "does not fit") else float(cell)


def _wrapped(text: str) -> str:
    """As one paragraph, no line of which begins like a list."""
    paragraphs = (" ".join(part.split()) for part in text.strip().split("\n\n"))
    joined = " ".join(p if p.endswith((".", ":")) else f"{p}." for p in paragraphs if p)
    joined = re.sub(r" (?=(?:\d+\.|[-+*]) )", "\0", joined)
    lines = textwrap.fill(joined, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


_BLOCKS: dict[str, Callable[[list[str], str | None], str]] = {
    "table": table,
    "rows": rows,
    "policies": policies,
    "head": head,
    "foot": foot,
    "output": output,
}


if __name__ == "__main__":
    main()
