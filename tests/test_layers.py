"""The package is a stack of stages: imports go downwards, and platforms are compared in few
places. CONTRIBUTING says what each stage is."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import coop_jax

PACKAGE = Path(coop_jax.__file__).parent
# From the bottom to the top. Names in one line may import each other's modules.
LAYERS = (
    ("_ext",),
    ("base", "targets"),
    ("trace",),
    ("loops",),
    ("xla",),
    ("graph",),
    ("plan",),
    ("emit",),
    ("arena",),
    ("backends",),
    ("compile",),
    ("search",),
    ("saved",),
    ("report",),
    ("fitted_step",),
    ("fitted_line",),
    ("fit_saved",),
    ("searches",),
    ("fit_form", "fitted_branches"),
    ("pipeline",),
    ("api",),
    ("comparison",),
    ("planning",),
    ("dtr_log",),
    ("__init__",),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
PLATFORMS = frozenset(("cpu", "gpu", "cuda", "rocm", "tpu"))
# The table of devices, how absent ones are made, and the backends themselves.
MAY_COMPARE_PLATFORMS = (
    "backends/",
    "base/absent_topologies.py",
    "targets.py",
    "xla/absent_devices.py",
)
# Messages that say what a name of a target means.
MESSAGES = {"comparison/compare.py": 1}

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(module: str) -> Iterator[str]:
    """The package's modules that a module imports, in functions and for types too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            source = node.module or ""
            names = [f"{source}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "coop_jax":
                yield from _known(parts[1:])


def _known(parts: list[str]) -> Iterator[str]:
    """`a.b.name` is the module `a.b`, or `a.b.name` if that is one, or a package."""
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        for found in (name, f"{name}.__init__"):
            if found in MODULES or found == "_ext":
                yield found
                return


def layer(module: str) -> str:
    return module.split(".")[0]


def test_every_module_has_a_layer():
    assert {layer(module) for module in MODULES} <= set(RANK)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_downwards(module):
    upwards = [
        f"{module} imports {imported}"
        for imported in imports(module)
        if RANK[layer(imported)] > RANK[layer(module)]
        or (
            (
                layer(imported) != layer(module)
                and RANK[layer(imported)] == RANK[layer(module)]
            )
            and RANK[layer(module)] != RANK["base"]
        )
    ]
    assert not upwards


def test_there_are_no_cycles():
    graph = {module: set(imports(module)) - {module} for module in MODULES}
    order = tuple(graphlib.TopologicalSorter(graph).static_order())  # Or CycleError.
    assert set(order) >= set(MODULES)
    assert order.index("base._compat") < order.index("pipeline")


def compared_platforms(module: str) -> int:
    """Comparisons with names of platforms, in `==`, `!=`, `in` and `not in`."""
    found = 0
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            constants = {
                constant.value
                for operand in operands
                for constant in ast.walk(operand)
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
            }
            found += not PLATFORMS.isdisjoint(constants)
    return found


def test_platforms_are_compared_by_backends_and_targets_alone():
    elsewhere = {}
    for module, path in MODULES.items():
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(MAY_COMPARE_PLATFORMS):
            count = compared_platforms(module)
            if count:
                elsewhere[name] = count
    assert elsewhere == MESSAGES
    assert compared_platforms("targets") > 0, "the check finds what is there"
