"""Every number of the package and of the core is listed, as a tuned value or as none."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import tuned_values
from tuned import core
from tuned.results import Results
from tuned.values import OTHER_NUMBERS, VALUES, Tuned, changed

import coop_jax
from coop_jax.backends.tpu.heap import NearMemory
from coop_jax.search import candidates, driver, feedback_search

PACKAGE = Path(coop_jax.__file__).parent
LISTED = Path(tuned_values.RESULTS) / "tuned_values_list.md"


def names_bound(node: ast.stmt) -> Iterator[str]:
    """The name that a statement gives a value with a number in it.

    Several names at once are an enumeration: fields of a format, or kinds.
    """
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return
    constants = (c.value for c in ast.walk(value) if isinstance(c, ast.Constant))
    if any(type(constant) in (int, float) for constant in constants):
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def numbers_of_the_package() -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            found[module].update(name for name in names_bound(node) if name.isupper())
    return {module: names for module, names in found.items() if names}


def numbers_of_the_core() -> dict[str, set[str]]:
    found = defaultdict(set)
    for path in [*core.CORE.rglob("*.cc"), *core.CORE.rglob("*.h")]:
        names = re.findall(r"constexpr [\w:]+ (k[A-Z]\w*) =", path.read_text())
        found[path.relative_to(core.CORE).as_posix()].update(names)
    return {file: names for file, names in found.items() if names}


def test_every_number_of_the_package_is_listed():
    listed = {module: set(names) for module, names in OTHER_NUMBERS.items()}
    for tuned in VALUES:
        listed.setdefault(tuned.module, set()).add(tuned.name)
    assert numbers_of_the_package() == listed


def test_every_constant_of_the_core_is_listed():
    listed = {file: set(names) for file, names in core.OTHER_CONSTANTS.items()}
    for constant in core.CONSTANTS:
        listed.setdefault(constant.file, set()).add(constant.name)
    assert numbers_of_the_core() == listed


def test_nothing_is_listed_twice():
    names = [tuned.qualified for tuned in VALUES]
    assert len(set(names)) == len(names)
    for tuned in VALUES:
        assert tuned.name not in OTHER_NUMBERS.get(tuned.module, ())


@pytest.mark.parametrize("tuned", VALUES, ids=lambda tuned: tuned.qualified)
def test_values_can_be_halved_and_doubled(tuned):
    assert (tuned.seen_on in tuned_values.STEPS) != bool(tuned.effect)
    assert tuned.times(1) == tuned.value
    assert tuned.times(2) != tuned.value


@pytest.mark.parametrize("constant", core.CONSTANTS, ids=lambda constant: constant.name)
def test_constants_can_be_halved_and_doubled(constant):
    source = (core.CORE / constant.file).read_text()
    assert len(constant.pattern.findall(source)) == 1
    assert float(constant.times(2)) > float(constant.text()) > float(constant.times(0.5))


def test_a_value_is_changed_wherever_it_is_imported():
    tuned = Tuned("search.candidates", "MAX_TIGHTEST", "", "")
    search = feedback_search.FeedbackSearch.tightest
    before = search.__defaults__
    with changed(tuned, 17):
        for module in (candidates, driver, feedback_search):
            assert module.MAX_TIGHTEST == 17
        assert search.__defaults__ == (17,)
        assert driver.BudgetSearch.smallest.__defaults__ == (17,)
    assert candidates.MAX_TIGHTEST == driver.MAX_TIGHTEST == 2
    assert search.__defaults__ == before


def test_distances_from_a_neutral_value_are_scaled():
    guesses = Tuned("backends.tpu.heap", "_GUESSES", "", "").times(2)
    assert guesses[0] == NearMemory(0.9, 128)
    preferences = Tuned("backends.tpu.pool_sweep", "_PREFERENCES", "", "", neutral=1)
    assert preferences.times(2) == (None, pytest.approx(0.7))


def test_the_list_of_the_documents_is_up_to_date():
    lines = [line for line in LISTED.read_text().splitlines() if line.startswith("|")]
    assert lines[2:] == [f"| {' | '.join(row)} |" for row in tuned_values.listed()]


def page_of(on: str) -> Path:
    return LISTED.with_name(f"tuned_values_{on.replace(' ', '_')}.md")


def rows_of_page(on: str) -> list[list[str]]:
    lines = [line for line in page_of(on).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


MEASURED = [on for on in (*tuned_values.STEPS, "core") if page_of(on).exists()]


@pytest.mark.parametrize("on", MEASURED)
def test_measured_rows_are_of_values_as_they_are(on):
    if on == "core":
        known = [(f"`{c.name}`", c.text()) for c in core.CONSTANTS if not c.effect]
    else:
        known = tuned_values.current_values(on).items()
    rows = rows_of_page(on)
    assert rows
    assert {(row[0], row[1]) for row in rows} <= set(known)


def test_a_page_keeps_rows_of_values_that_are_the_same():
    columns = "value", "is", "set to", "found"
    first = Results(columns, {"`a`": "1", "`b`": "2", "`c`": "3"})
    for name, value in (("`a`", "1"), ("`b`", "2"), ("`c`", "3")):
        first.replace(name, [[name, value, "9", ""], [name, value, "8", "x"]])
    before = first.text("`first`\n\nversions")
    # One is removed, one has another value, and a new one is measured.
    after = Results(columns, {"`d`": "4", "`a`": "1", "`b`": "7"}, before)
    after.replace("`d`", [["`d`", "4", "2", "y"]])
    head, _, versions, _, *table = after.text("`second`\n\nversions").splitlines()
    assert (head, versions) == ("`first` and `second`", "versions")
    assert table[2:] == ["| `d` | 4 | 2 | y |", "| `a` | 1 | 9 |  |", "| `a` | 1 | 8 | x |"]
