"""Check that the C++ sources include only downwards, from folder to folder.

    python xla_ext/check_includes.py

Exits with 1 after printing every include that goes up or sideways, every folder that no
layer names, and every include of a file that does not exist. As a folder includes only
folders of lower layers (and itself), there are no cycles between folders.
"""

import pathlib
import re
import sys

# From the bottom to the top. Folders of one layer do not include each other.
LAYERS = (
    # The handlers know nothing of the planner.
    ("core/base", "ffi", "ffi/arena"),
    ("core/graph", "core/loops", "core/packing"),
    ("core/schedule",),
    ("core/search", "core/online"),
    ("core/allocator",),
    ("core",),
    ("bindings",),
)

_SUFFIXES = {".h", ".cc", ".cu"}
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_LAYER = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders}


def faults_of(root: pathlib.Path) -> list[str]:
    """Return one line for each fault of the sources under `root`; none if all is well."""
    faults = []
    for source in sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES):
        name = source.relative_to(root).as_posix()
        folder = name.rpartition("/")[0]
        if folder not in _LAYER:
            faults.append(f"{name}: the folder `{folder}` is in none of LAYERS")
            continue
        for included in _INCLUDE.findall(source.read_text()):
            fault = _fault_of(root, folder, included)
            if fault:
                faults.append(f"{name}: {fault}")
    return faults


def _fault_of(root: pathlib.Path, folder: str, included: str) -> str | None:
    if (root / folder / included).is_file():
        return f'"{included}" is relative to `{folder}`: name it from the root'
    other = included.rpartition("/")[0]
    ours = {name.partition("/")[0] for name in _LAYER}
    if included.partition("/")[0] not in ours:
        return None  # Of a library.
    if not (root / included).is_file():
        return f'"{included}" does not exist'
    if other not in _LAYER or other == folder:
        return None  # A folder without a layer is a fault of its own.
    if _LAYER[other] > _LAYER[folder]:
        return f'"{included}" is above `{folder}`'
    if _LAYER[other] == _LAYER[folder]:
        return f'"{included}" is beside `{folder}`, in the same layer'
    return None


def main() -> int:
    """Print the faults; return the exit status."""
    faults = faults_of(pathlib.Path(__file__).resolve().parent)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
