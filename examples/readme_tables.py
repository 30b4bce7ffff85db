"""README tables: copy the tables of committed results into the README.

    python examples/readme_tables.py [--check]

A comment `<!-- path path ... -->` in the README names files; the table right behind it
becomes theirs, one after the other under one header.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
README = ROOT / "README.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if anything changes")
    args = parser.parse_args()
    before = README.read_text()
    after = with_tables(before)
    if args.check and after != before:
        sys.exit("The README's tables are not those of the results: run this script.")
    README.write_text(after)


def with_tables(text: str) -> str:
    """The README with all its tables made anew."""
    return re.sub(
        r"<!-- (\S+\.md(?: \S+\.md)*) -->\n(?:\|.*\n)+",
        lambda match: f"<!-- {match[1]} -->\n{table(match[1].split())}\n",
        text,
    )


def table(paths: list[str]) -> str:
    """The rows of all files below the header of the first."""
    lines: list[str] = []
    for path in paths:
        rows = re.findall(r"^\|.*$", (ROOT / path).read_text(), re.MULTILINE)
        lines += rows if not lines else rows[2:]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
