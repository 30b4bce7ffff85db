"""Plan files with something changed: as text, or in their parts with another digest."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from coop_jax.saved.document import contents_of, text_of

JUNK = (None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63 - 1, 2**64, -(2**70), 0.5, 1e300)
MORE_JUNK = ("", "in0", "eqn0", "eqn3.1", "run 0", "again 5", "free 3", [], {}, [0], "\x00")


def mutated(text: str, random: np.random.Generator) -> str:
    """The text of a plan file with one to three changes."""
    if random.integers(8) == 0:
        return _with_other_characters(text, random)
    contents = copy.deepcopy(contents_of(text))
    for _ in range(random.integers(1, 4)):
        _change(contents, random)
    return text_of(contents)


def _with_other_characters(text: str, random: np.random.Generator) -> str:
    at = int(random.integers(len(text)))
    kind = random.integers(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + text[at + int(random.integers(1, 9)) :]
    if kind == 2:
        return text[:at] + chr(int(random.integers(32, 127))) + text[at + 1 :]
    other = int(random.integers(len(text)))
    return text[:at] + text[other : other + 20] + text[at:]


def _change(contents: Any, random: np.random.Generator) -> None:
    """One change, as often of the plan as of the step."""
    # Most of a file is the equations, whose digests leave nothing to find.
    part = ("plan", "loops", "step", "")[random.choice(4, p=[0.5, 0.3, 0.1, 0.1])]
    root = contents.get(part)
    if not isinstance(root, dict | list):  # There is none, or it was replaced before.
        root = contents
    found = list(places(root))
    if not found:
        return
    # A kind of place first: rows of tables are most of them.
    kinds = sorted({kind for kind, _, _ in found})
    kind = kinds[random.integers(len(kinds))]
    chosen = [place for place in found if place[0] == kind]
    _, holder, key = chosen[random.integers(len(chosen))]
    _replace(holder, key, random)


def places(value: Any, kind: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places in a document: the names on the way to them, the holder and the key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        name = f"{kind}.{key}" if isinstance(value, dict) else f"{kind}[]"
        yield name, value, key
        if isinstance(item, dict | list):
            yield from places(item, name)


def _replace(holder: Any, key: Any, random: np.random.Generator) -> None:
    value = holder[key]
    kind = random.integers(7)
    junk = (*JUNK, *MORE_JUNK)
    if kind == 0:
        holder[key] = copy.deepcopy(junk[random.integers(len(junk))])
    elif kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder, list):
        more = copy.deepcopy(holder[random.integers(len(holder))])
        # One more value to keep makes another plan.
        holder.insert(key, _other_digit(more, random) if isinstance(more, str) else more)
    elif kind == 3 and isinstance(holder, list):
        other = int(random.integers(len(holder)))
        holder[key], holder[other] = holder[other], holder[key]
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = value + int(random.choice([-64, -1, 1, 2, 64, 4096]))
    elif isinstance(value, str):
        holder[key] = _other_digit(value, random)
    elif isinstance(value, list):
        random.shuffle(value)
    else:
        holder[key] = json.loads(json.dumps({"more": value}))


def _other_digit(text: str, random: np.random.Generator) -> str:
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    at = digits[random.integers(len(digits))] if digits else len(text)
    return text[:at] + str(random.integers(10)) + text[at + 1 :]
