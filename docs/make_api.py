"""API: the reference of all public names, from their docstrings.

    python docs/make_api.py [--check]

Public are the names that the modules below define, alias or import under the same name
("import X as X"). Writes `docs/api.md`; `--check` fails where that would change it.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

PAGE = pathlib.Path(__file__).with_name("api.md")
MODULES = ("coop_jax", "coop_jax.planning", "coop_jax.targets", "coop_jax.dtr_log")
# Types that public functions return, and no module exports.
RETURNED = (
    "coop_jax.api.largest.Largest",
    "coop_jax.report.Recomputation",
    "coop_jax.report.LoopPlan",
    "coop_jax.loops.loop_plan.IterationsPlan",
    "coop_jax.api.results_check.Check",
    "coop_jax.api.results_check.Difference",
)
_INTRODUCTION = """# API

Made from the docstrings by `python docs/make_api.py`; do not edit.
"""
_SECTION = re.compile(r"(Arguments|Attributes|Returns|Raises):$")
_NUMPY_SECTIONS = {"Parameters": "Arguments", "Returns": "Returns", "Raises": "Raises"}
_WIDTH = 92


@dataclasses.dataclass(frozen=True)
class Name:
    """A public name: `qualified` is how users write it, `value` what it stands for."""

    qualified: str
    value: Any

    @property
    def is_native(self) -> bool:
        """Is it a class of the C++ extension?"""
        return inspect.isclass(self.value) and self.value.__module__.endswith("_ext")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if anything changes")
    after = page()
    if parser.parse_args().check and (not PAGE.exists() or PAGE.read_text() != after):
        sys.exit("docs/api.md is not that of the docstrings: run this script.")
    PAGE.write_text(after)


def page() -> str:
    """The whole reference, as Markdown."""
    parts = [_INTRODUCTION]
    shown: dict[int, str] = {}
    for module in MODULES:
        doc = importlib.import_module(module).__doc__
        parts += [f"## {module}\n", f"{markdown(doc)}\n"]
        for name in public_names(module):
            first = shown.setdefault(id(name.value), name.qualified)
            parts.append(_described(name, first))
    parts.append("## Returned by these\n")
    parts += [_described(name, name.qualified) for name in returned()]
    return "\n".join(parts)


def public_names(module: str) -> Iterator[Name]:
    """The public names of a module, in the order in which they are written."""
    found = importlib.import_module(module)
    for node in ast.parse(inspect.getsource(found)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.ImportFrom):
            exported = getattr(found, "__all__", ())
            names = [
                alias.name
                for alias in node.names
                if alias.name in exported or alias.asname == alias.name
            ]
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        else:
            names = []
        for name in names:
            if not name.startswith("_"):
                yield Name(f"{module}.{name}", getattr(found, name))


def returned() -> Iterator[Name]:
    """Classes that public functions return, and no public module exports."""
    for qualified in RETURNED:
        module, _, name = qualified.rpartition(".")
        yield Name(qualified, getattr(importlib.import_module(module), name))


def members(name: Name) -> Iterator[Name]:
    """Public methods and properties of a class itself."""
    for member, value in vars(name.value).items():
        if member.startswith("_"):
            continue
        if callable(value) or type(value).__name__ in _PROPERTIES:
            yield Name(f"{name.qualified}.{member}", value)


_PROPERTIES = ("property", "nb_static_property")


def _described(name: Name, first: str) -> str:
    short = name.qualified.rpartition(".")[2]
    if first != name.qualified:
        return f"### {name.qualified}\n\nThe same as `{first}`.\n"
    if not (callable(name.value) or inspect.isclass(name.value)):
        return f"### {short}\n\n`{name.value!r}`\n"
    doc = own_doc(name)
    parts = [f"### {short}\n"]
    if inspect.isfunction(name.value) or _is_made_by_users(name, doc):
        parts.append(f"```python\n{_signature(short, name.value)}\n```\n")
    if doc:
        parts.append(f"{markdown(doc)}\n")
    if inspect.isclass(name.value):
        properties = [
            _property(member)
            for member in members(name)
            if not callable(member.value) and not _is_attribute(member, doc)
        ]
        if properties:
            parts.append("**Properties**\n\n" + "\n".join(properties) + "\n")
        parts += [_method(member) for member in members(name) if callable(member.value)]
    return "\n".join(parts)


def _is_made_by_users(name: Name, doc: str) -> bool:
    return "\nArguments:\n" in doc and not name.is_native


def _is_attribute(name: Name, class_doc: str) -> bool:
    """Is the property in the class's list of attributes?"""
    short = name.qualified.rpartition(".")[2]
    return re.search(rf"^ +{short}:", class_doc, re.MULTILINE) is not None


def _property(name: Name) -> str:
    text = " ".join(own_doc(name).split())
    return f"* `{name.qualified.rpartition('.')[2]}`" + (f": {text}" if text else "")


def _method(name: Name) -> str:
    short = ".".join(name.qualified.split(".")[-2:])
    value, doc = name.value, own_doc(name)
    if inspect.isfunction(value):
        parameters = list(inspect.signature(value).parameters.values())
        shown = ", ".join(map(_parameter_name, parameters[1:]))
    else:
        names = re.findall(r"(\w+): ", _native_signature(value).partition("->")[0])
        shown = ", ".join(names)
    return f"#### `{short}({shown})`\n" + (f"\n{markdown(doc)}\n" if doc else "")


def own_doc(name: Name) -> str:
    """The docstring, not inherited, and without the signature that nanobind adds."""
    value = name.value
    doc = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    doc = inspect.cleandoc(doc or "")
    doc = doc.removeprefix(_native_signature(value)).lstrip("\n")
    return "" if doc.startswith("(self) -> ") else doc


def _native_signature(value: Any) -> str:
    """The first line that nanobind puts before a function's docstring."""
    doc = value.__doc__ or ""
    is_native = type(value).__name__ in ("nb_method", "nb_func")
    return doc.splitlines()[0] if is_native and doc else ""


def _parameter_name(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    cells, was_keyword = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not was_keyword:
            was_keyword = True
            if not any(cell.startswith("*") for cell in cells):
                cells.append("*")
        was_keyword |= parameter.kind is parameter.VAR_POSITIONAL
        text = _parameter_name(parameter)
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {parameter.default!r}"
        cells.append(text)
    result = signature.return_annotation
    arrow = "" if result is signature.empty else f" -> {_annotation(result)}"
    if inspect.isclass(value):
        arrow = ""
    line = f"def {name}({', '.join(cells)}){arrow}: ..."
    if len(line) <= _WIDTH:
        return line
    inside = "".join(f"    {cell},\n" for cell in cells)
    return f"def {name}(\n{inside}){arrow}: ..."


def _annotation(annotation: Any) -> str:
    is_text = isinstance(annotation, str)
    return annotation if is_text else inspect.formatannotation(annotation)


def markdown(doc: str) -> str:
    """A docstring as Markdown: sections become lists, indented blocks code."""
    blocks = []
    lines = _without_numpy_sections(inspect.cleandoc(doc).splitlines())
    while lines:
        section = _SECTION.fullmatch(lines[0])
        if section:
            lines.pop(0)
            body = textwrap.dedent("\n".join(_take_indented(lines)))
            blocks.append(f"**{section[1]}**\n\n{_section(section[1], body)}")
        elif lines[0].startswith("    "):
            code = textwrap.dedent("\n".join(_take_indented(lines))).rstrip()
            blocks.append(f"```{_language(code)}\n{code}\n```")
        elif lines[0].strip():
            text = []
            while lines and lines[0].strip() and not lines[0].startswith("    "):
                if _SECTION.fullmatch(lines[0]):
                    break
                text.append(lines.pop(0))
            blocks.append(re.sub(r"::$", ":", "\n".join(text)))
        else:
            lines.pop(0)
    return "\n\n".join(blocks)


def _without_numpy_sections(lines: list[str]) -> list[str]:
    """Underlined sections in the form of the others."""
    found: list[str] = []
    inside = ""
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if line in _NUMPY_SECTIONS and set(below) == {"-"}:
            inside = line
            found.append(f"{_NUMPY_SECTIONS[line]}:")
        elif inside and line and set(line) == {"-"}:
            continue
        elif inside and line and not line.startswith(" "):
            found.append(f"    {re.sub(r' : .*', ':', line)}")
            if inside != "Parameters" and not line.endswith(":"):
                found[-1] += ":"
        else:
            found.append(f"    {line}" if inside and line else line)
    return found


def _take_indented(lines: list[str]) -> list[str]:
    """Removes the indented block at the beginning of the lines."""
    taken = []
    while lines and (not lines[0].strip() or lines[0].startswith("  ")):
        taken.append(lines.pop(0))
    return taken


def _section(title: str, body: str) -> str:
    if title == "Returns":
        return " ".join(body.split())
    items: list[str] = []
    for line in body.splitlines():
        if line.strip() and not line.startswith(" "):
            items.append(line)
        elif line.strip():
            items[-1] += f" {line.strip()}"
    return "\n".join(f"* {_item(item)}" for item in items)


def _item(text: str) -> str:
    names, colon, rest = text.partition(": ")
    if not colon:
        return text
    quoted = ", ".join(f"`{name.strip()}`" for name in names.split(","))
    return f"{quoted}: {rest.strip()}"


def _language(code: str) -> str:
    try:
        ast.parse(code)
    except SyntaxError:
        return "text"
    return "python"


if __name__ == "__main__":
    main()
