"""Pages of tuned values that grow: rows measured now, and earlier ones that still hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from budget_table import markdown


class Results:
    """A page of rows by the value that they are about.

    Arguments:
        columns: of its table.
        current: the values that belong on the page, in order, each with its text.
        before: the page whose rows are kept, where the value is still the same; "" for a
            new one.
    """

    def __init__(
        self, columns: Sequence[str], current: Mapping[str, str], before: str = ""
    ) -> None:
        self._columns, self._current, self._before = columns, current, before
        self._rows: dict[str, list[list[str]]] = {}
        for line in before.splitlines():
            row = [cell.strip() for cell in line.strip("|").split("|")]
            if row[0] in current and row[1] == current[row[0]]:
                self._rows.setdefault(row[0], []).append(row)

    def replace(self, value: str, rows: list[list[str]]) -> None:
        """The rows of a value, in place of earlier ones."""
        self._rows[value] = rows

    def text(self, head: str) -> str:
        """The page.

        Arguments:
            head: the command of this run and what it ran on.
        """
        if self._before:
            head = f"{self._before.splitlines()[0]} and {head}"
        rows = [row for value in self._current for row in self._rows.get(value, ())]
        return f"{head}\n\n{markdown(rows, self._columns)}"
