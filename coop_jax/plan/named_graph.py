"""Named graph: a graph for the planner from dictionaries of names."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coop_jax import _ext
from coop_jax.base.strict_values import flag, real_number, shown, whole_bytes

Graph = _ext.Graph

# The most bytes of one tensor or workspace, and of all together; see `graph_check.cc`.
MOST_BYTES_OF_ONE = 2**48 - 1
MOST_BYTES = 2**61 - 1
MOST_SECONDS = 1e18

_TENSOR_KEYS = ("bytes", "pinned", "external", "output")
_OPERATION_KEYS = (
    "seconds",
    "inputs",
    "outputs",
    "workspace_bytes",
    "recomputable",
    "in_place",
    "overwrites",
    "releases",
)


def named_graph(
    tensors: Mapping[str, Mapping[str, Any]], operations: Sequence[Mapping[str, Any]]
) -> tuple[Graph, tuple[str, ...]]:
    """A `Graph` from dictionaries, and the tensors' names in the graph's order.

    Arguments:
        tensors: by name `{"bytes": int}` and, where they apply, `"pinned"`, `"external"`
            and `"output"`: True.
        operations: in execution order, `{"seconds": float, "inputs": [names], "outputs":
            [names]}` and, where they apply, `"workspace_bytes": int`,
            `"recomputable": False`, `"in_place"` and `"overwrites"`: [(old, new) names],
            and `"releases"`: [names whose handles go afterwards]. With releases anywhere,
            a tensor that nobody releases is held to the end; without any, each goes
            after its last use.

    Raises:
        TypeError: a value is of another type. NumPy's numbers are numbers; a bool is not,
            and neither is a string of digits or an integral float where bytes are meant.
        ValueError: a key or a name is unknown, a number is out of range (bytes of one
            tensor: 2**48, of all together: 2**61, seconds together: 1e18), or it is no
            graph; the message names the tensor or the operation.
    """
    _check_containers(tensors, operations)
    names = tuple(tensors)
    index_of = {name: i for i, name in enumerate(names)}

    def indices(i: int, key: str, wanted: Any) -> list[int]:
        found = _list(f"{key!r} of operation {i}", wanted, "names")
        for name in found:
            if not isinstance(name, str) or name not in index_of:
                raise ValueError(
                    "`planning.named_graph(operations=...)` must name tensors of "
                    f"`tensors`. Got {shown(name)} in operation {i}. Add it to `tensors`."
                )
        return [index_of[name] for name in found]

    def rows(key: str) -> np.ndarray:
        found = [
            (i, *indices(i, key, _pair(f"{key!r} of operation {i}", pair)))
            for i, operation in enumerate(operations)
            for pair in _list(f"{key!r} of operation {i}", operation.get(key, ()), "pairs")
        ]
        return np.array(found, np.int64).reshape(-1, 3)

    def lists(key: str) -> list[list[int]]:
        return [indices(i, key, op.get(key, ())) for i, op in enumerate(operations)]

    def of_operations(key: str, default: Any, check: Callable) -> list[Any]:
        return [
            check(f"operation {i}", key, operation.get(key, default))
            for i, operation in enumerate(operations)
        ]

    def of_tensors(key: str, default: Any, check: Callable) -> list[Any]:
        return [
            check(f"tensor {name!r}", key, tensor.get(key, default))
            for name, tensor in tensors.items()
        ]

    reads, makes, releases = lists("inputs"), lists("outputs"), lists("releases")
    released = [(i, t) for i, row in enumerate(releases) for t in row]
    has_releases = any("releases" in operation for operation in operations)
    graph = Graph(
        op_seconds=np.array(of_operations("seconds", 0, _seconds), np.float64),
        op_workspace_bytes=np.array(of_operations("workspace_bytes", 0, _bytes), np.int64),
        op_recomputable=np.array(of_operations("recomputable", True, _flag), np.bool_),
        op_inputs_ptr=_pointers(reads),
        op_inputs=_flat(reads),
        op_outputs_ptr=_pointers(makes),
        op_outputs=_flat(makes),
        tensor_bytes=np.array(of_tensors("bytes", 0, _bytes), np.int64),
        tensor_external=np.array(of_tensors("external", False, _flag), np.bool_),
        tensor_pinned=np.array(of_tensors("pinned", False, _flag), np.bool_),
        tensor_output=np.array(of_tensors("output", False, _flag), np.bool_),
        in_place=rows("in_place"),
        overwrites=rows("overwrites"),
        releases=np.array(released, np.int64).reshape(-1, 2) if has_releases else None,
    )
    return graph, names


def _check_containers(tensors: Any, operations: Any) -> None:
    """Refuse tensors and operations that are no mappings and lists."""
    if not isinstance(tensors, Mapping):
        raise TypeError(
            "`planning.named_graph(tensors=...)` must be a dictionary by name. Got "
            f"{shown(tensors)}. Pass {{name: {{'bytes': ...}}}}."
        )
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(
                "`planning.named_graph(tensors=...)` must have strings as names. Got "
                f"{shown(name)}. Use `str(...)`."
            )
        _check_keys(f"tensor {name!r}", tensor, _TENSOR_KEYS, "bytes")
    # Not a generator, which can only be read once.
    for i, operation in enumerate(_list("`operations`", operations, "dictionaries")):
        _check_keys(f"operation {i}", operation, _OPERATION_KEYS, "seconds")


def _check_keys(what: str, given: Any, known: tuple[str, ...], required: str) -> None:
    """Refuse unknown and missing keys of a tensor or operation."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"`planning.named_graph(...)`: {what} must be a dictionary. Got "
            f"{shown(given)}. Pass {{{required!r}: ...}}."
        )
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(
            f"`planning.named_graph(...)`: the keys of {what} must be among "
            f"{', '.join(known)}. Got {shown(unknown[0])}. Correct or remove it."
        )
    if required not in given:
        raise ValueError(
            f"`planning.named_graph(...)`: {what} must have {required!r}. Got the keys "
            f"{sorted(given)}. Add it."
        )


def _list(what: str, given: Any, of_what: str) -> Sequence[Any]:
    if isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        return given
    raise TypeError(
        f"`planning.named_graph(...)`: {what} must be a list of {of_what}. Got "
        f"{shown(given)}. Put it into brackets or use `list(...)`."
    )


def _pair(what: str, given: Any) -> Sequence[Any]:
    pair = _list(what, given, "(old, new) pairs")
    if len(pair) != 2:
        raise ValueError(
            f"`planning.named_graph(...)`: {what} must be a list of (old, new) pairs. Got "
            f"{shown(given)}. Give two names each."
        )
    return pair


def _bytes(owner: str, key: str, value: Any) -> int:
    what = f"`planning.named_graph(...)`: {key!r} of {owner}"
    todo = "Give bytes as an int."
    return whole_bytes(what, value, todo, least=0, most=MOST_BYTES_OF_ONE)


def _seconds(owner: str, key: str, value: Any) -> float:
    what = f"`planning.named_graph(...)`: {key!r} of {owner}"
    return real_number(what, value, "Give the time in seconds.")


def _flag(owner: str, key: str, value: Any) -> bool:
    what = f"`planning.named_graph(...)`: {key!r} of {owner}"
    return flag(what, value, "Give the bool itself.")


def _pointers(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def _flat(rows: Sequence[Iterable[int]]) -> np.ndarray:
    return np.array(list(itertools.chain.from_iterable(rows)), np.int64)
